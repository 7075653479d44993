// The loopback backend: N ranks as N threads of one process, for tests of everything above it.
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/control_plane.h"
#include "transport/factory.h"
#include "transport/mailbox.h"
#include "transport/transport.h"
#include "world/departure.h"

namespace mydist {
namespace {

// Hub: what the ranks of a loopback job share; the "network" between N threads of one process.
// Owned jointly by all planes of the job. Called from every rank's thread; one Mutex guards all of
// it but the mailboxes; tensors are copied outside of it.
class Hub {
 public:
  explicit Hub(int size)
      : size_(size),
        mailboxes_(static_cast<size_t>(size)),
        members_(static_cast<size_t>(size)),
        channels_(static_cast<size_t>(size) * static_cast<size_t>(size)) {}
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  int size() const { return size_; }

  Mailbox& mailbox(int rank) { return mailboxes_[static_cast<size_t>(rank)]; }

  // Those of ControlPlane, for rank `rank`.
  Status Send(int rank, int peer, Bytes payload) MYDIST_EXCLUDES(mutex_) {
    MYDIST_CHECK(peer != rank && peer >= 0 && peer < size_);
    MYDIST_CHECK(static_cast<int64_t>(payload.size()) <= kMaxControlMessageBytes);
    MutexLock lock(mutex_);
    if (member(peer).presence != Presence::kHere) return PeerGone(peer);
    mailbox(peer).Put({rank, std::move(payload)});
    return Status::Ok();
  }
  Status CheckPeer(int peer) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return member(peer).presence == Presence::kHere ? Status::Ok() : PeerGone(peer);
  }
  void SetFarewell(int rank, const std::string& why) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    member(rank).farewell = why;
  }
  void Close(int rank) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Depart(rank, Presence::kClosed);
  }

  // Rank `rank` has gone: an orderly way after Close, otherwise as if it had died.
  void Leave(int rank) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (member(rank).presence != Presence::kHere) return;
    Depart(rank, Presence::kLost);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank) mailbox(peer).PutLoss(PeerGone(rank));
    }
  }

  // Transport::Exchange for rank `rank`; `watchdog` may be null.
  Status Exchange(int rank, std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives, Watchdog* watchdog)
      MYDIST_EXCLUDES(mutex_) {
    Call call{.rank = rank,
              .sends = sends,
              .receives = receives,
              .wait = WatchedWait(watchdog),
              .parcels = {}};
    {
      MutexLock lock(mutex_);
      Post(call);
    }
    Status status = Deliver(call);
    MutexLock lock(mutex_);
    if (status.ok()) status = AwaitTaken(call);
    if (!status.ok()) TakeBack(call);
    return status;
  }

  // Round `round` (0, 1, …) of BootstrapExchange for rank `rank`.
  Result<std::vector<Bytes>> Gather(int rank, int64_t round, const Bytes& mine)
      MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Round& gathered = rounds_[round];
    gathered.blobs.resize(static_cast<size_t>(size_));
    gathered.blobs[static_cast<size_t>(rank)] = mine;
    if (++gathered.present == size_) WakeAll();
    while (gathered.present < size_) {
      for (int peer = 0; peer < size_; ++peer) {
        const bool here = member(peer).presence == Presence::kHere;
        if (!here && !gathered.blobs[static_cast<size_t>(peer)]) return PeerGone(peer);
      }
      member(rank).changed.Wait(mutex_);
    }
    std::vector<Bytes> all;
    for (const std::optional<Bytes>& blob : gathered.blobs) all.push_back(*blob);
    if (++gathered.collected == size_) rounds_.erase(round);
    return all;
  }

 private:
  enum class Presence { kHere, kClosed, kLost };

  // A send that waits in a channel; lives on the sender's stack until taken back or done.
  struct Parcel {
    const void* data;
    int64_t bytes;
    bool taken = false;  // The receiver is copying it, or has.
    bool done = false;
  };

  struct Member {
    CondVar changed;
    Presence presence = Presence::kHere;
    std::string farewell;
  };

  struct Round {
    std::vector<std::optional<Bytes>> blobs;
    int present = 0;
    int collected = 0;
  };

  Member& member(int rank) MYDIST_REQUIRES(mutex_) { return members_[static_cast<size_t>(rank)]; }
  // Parcels on the way from one rank to another, oldest first.
  std::deque<Parcel*>& channel(int from, int to) MYDIST_REQUIRES(mutex_) {
    return channels_[static_cast<size_t>(from) * static_cast<size_t>(size_) +
                     static_cast<size_t>(to)];
  }
  Status PeerGone(int peer) MYDIST_REQUIRES(mutex_) {
    const std::string who = "rank " + std::to_string(peer);
    if (member(peer).presence == Presence::kClosed)
      return PeerHasLeft(peer, who, member(peer).farewell);
    return Status::PeerLost(who + " closed its connection without a goodbye; see its output")
        .About({.ranks = {peer}});
  }
  void WakeAll() MYDIST_REQUIRES(mutex_) {
    for (Member& each : members_) each.changed.NotifyAll();
  }

  // One call of Exchange.
  struct Call {
    int rank;
    std::span<const SendTransfer> sends;
    std::span<const ReceiveTransfer> receives;
    WatchedWait wait;
    std::deque<Parcel> parcels;  // Of each send; a deque, as the channels point into it.
    size_t delivered = 0;        // So many of `receives` are complete.
  };

  void Post(Call& call) MYDIST_REQUIRES(mutex_) {
    for (const SendTransfer& send : call.sends) {
      MYDIST_CHECK(send.peer != call.rank && send.peer >= 0 && send.peer < size_);
      const bool empty = send.bytes == 0;
      call.parcels.push_back({send.data, send.bytes, /*taken=*/empty, /*done=*/empty});
      if (empty) continue;
      channel(call.rank, send.peer).push_back(&call.parcels.back());
      member(send.peer).changed.NotifyAll();
    }
  }
  // Copies what peers have put into their channels to us.
  Status Deliver(Call& call) MYDIST_EXCLUDES(mutex_) {
    for (const ReceiveTransfer& receive : call.receives) {
      MYDIST_CHECK(receive.peer != call.rank && receive.peer >= 0 && receive.peer < size_);
      if (receive.bytes > 0) {
        Parcel* parcel = nullptr;
        {
          MutexLock lock(mutex_);
          MYDIST_ASSIGN_OR_RETURN(parcel, AwaitParcel(call, receive));
          channel(receive.peer, call.rank).pop_front();
          parcel->taken = true;
        }
        std::memcpy(receive.data, parcel->data, static_cast<size_t>(receive.bytes));
        MutexLock lock(mutex_);
        parcel->done = true;
        member(receive.peer).changed.NotifyAll();
      }
      ++call.delivered;
      call.wait.Restart(Now());
    }
    return Status::Ok();
  }
  Result<Hub::Parcel*> AwaitParcel(Call& call, const ReceiveTransfer& receive)
      MYDIST_REQUIRES(mutex_) {
    const std::deque<Parcel*>& parcels = channel(receive.peer, call.rank);
    while (parcels.empty()) MYDIST_RETURN_IF_ERROR(AwaitChange(call, receive.peer));
    if (parcels.front()->bytes != receive.bytes) {
      return Status::Internal(
          "rank " + std::to_string(receive.peer) + " sends " +
          std::to_string(parcels.front()->bytes) + " bytes, expected " +
          std::to_string(receive.bytes) +
          "; the ranks do not run the same operation. This is a bug of mydist: please report it");
    }
    return parcels.front();
  }
  Status AwaitTaken(Call& call) MYDIST_REQUIRES(mutex_) {
    for (size_t i = 0; i < call.parcels.size(); ++i) {
      while (!call.parcels[i].done) MYDIST_RETURN_IF_ERROR(AwaitChange(call, call.sends[i].peer));
    }
    return Status::Ok();
  }
  // For something to do with `peer`. Lets go of the mutex meanwhile.
  Status AwaitChange(Call& call, int peer) MYDIST_REQUIRES(mutex_) {
    MYDIST_RETURN_IF_ERROR(CheckPeers(call));
    member(call.rank).changed.WaitUntil(mutex_, call.wait.next_look());
    const TimePoint now = Now();
    if (!call.wait.IsDue(now)) return Status::Ok();
    mutex_.Unlock();  // It comes back here, for messages.
    const Status watched = call.wait.Look({&peer, 1}, now);
    mutex_.Lock();
    return watched;
  }
  // After an error no peer may keep a pointer to this rank's memory.
  void TakeBack(Call& call) MYDIST_REQUIRES(mutex_) {
    for (size_t i = 0; i < call.sends.size(); ++i) {
      Parcel& parcel = call.parcels[i];
      if (!parcel.taken) std::erase(channel(call.rank, call.sends[i].peer), &parcel);
      while (parcel.taken && !parcel.done) member(call.rank).changed.Wait(mutex_);
    }
  }
  // An error when the call still needs a rank that has departed; names the one that went first,
  // since the others may only have followed it. A rank departs outside of Exchange, so nothing of
  // it is on the way.
  Status CheckPeers(const Call& call) MYDIST_REQUIRES(mutex_) {
    for (const int peer : departed_) {
      for (size_t i = call.delivered; i < call.receives.size(); ++i) {
        if (call.receives[i].peer == peer && call.receives[i].bytes > 0) return PeerGone(peer);
      }
      for (size_t i = 0; i < call.sends.size(); ++i) {
        if (call.sends[i].peer == peer && !call.parcels[i].taken) return PeerGone(peer);
      }
    }
    return Status::Ok();
  }
  void Depart(int rank, Presence presence) MYDIST_REQUIRES(mutex_) {
    if (member(rank).presence != Presence::kHere) return;
    member(rank).presence = presence;
    departed_.push_back(rank);
    WakeAll();
  }

  const int size_;
  std::deque<Mailbox> mailboxes_;  // By rank.
  Mutex mutex_;
  std::deque<Member> members_ MYDIST_GUARDED_BY(mutex_);
  std::vector<int> departed_ MYDIST_GUARDED_BY(mutex_);  // Closed or lost ranks, first one first.
  std::vector<std::deque<Parcel*>> channels_ MYDIST_GUARDED_BY(mutex_);
  std::map<int64_t, Round> rounds_ MYDIST_GUARDED_BY(mutex_);
};

class LoopbackControlPlane final : public ControlPlane {
 public:
  LoopbackControlPlane(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~LoopbackControlPlane() override { hub_->Leave(rank_); }

  Status Send(int peer, Bytes payload) override {
    return hub_->Send(rank_, peer, std::move(payload));
  }
  Status CheckPeer(int peer) override { return hub_->CheckPeer(peer); }
  Result<std::optional<IncomingMessage>> Receive() override { return hub_->mailbox(rank_).Take(); }
  void Await(TimePoint deadline) override { hub_->mailbox(rank_).Await(deadline); }
  void Wake() override { hub_->mailbox(rank_).Wake(); }
  void Attend(bool attended) override { hub_->mailbox(rank_).Attend(attended); }
  void SetFarewell(const std::string& why) override { hub_->SetFarewell(rank_, why); }
  Status Close(TimePoint) override {
    hub_->Close(rank_);  // Nothing to flush: Send has delivered.
    return Status::Ok();
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
};

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    return hub_->Exchange(rank_, sends, receives, watchdog_);
  }
  void SetWatchdog(Watchdog* watchdog) override { watchdog_ = watchdog; }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
  Watchdog* watchdog_ = nullptr;
};

Connection MakeConnection(const std::shared_ptr<Hub>& hub, int rank) {
  Connection connection;
  connection.rank = rank;
  connection.size = hub->size();
  connection.control = std::make_unique<LoopbackControlPlane>(hub, rank);
  connection.transport = std::make_unique<LoopbackTransport>(hub, rank);
  connection.exchange = [hub, rank, round = int64_t{0}](const Bytes& mine) mutable {
    return hub->Gather(rank, round++, mine);
  };
  return connection;
}

}  // namespace

std::vector<Connection> ConnectLoopback(int size) {
  MYDIST_CHECK(size >= 1);
  std::vector<Connection> connections;
  if (size == 1) {
    connections.push_back(ConnectLocal());
    return connections;
  }
  const auto hub = std::make_shared<Hub>(size);
  for (int rank = 0; rank < size; ++rank) connections.push_back(MakeConnection(hub, rank));
  return connections;
}

}  // namespace mydist
