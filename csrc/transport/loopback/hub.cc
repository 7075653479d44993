#include "transport/loopback/hub.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/status.h"
#include "world/departure.h"

namespace mydist::loopback {

Hub::Hub(int size)
    : size_(size),
      members_(static_cast<size_t>(size)),
      channels_(static_cast<size_t>(size) * static_cast<size_t>(size)) {}

Status Hub::PeerGone(int peer) {
  const std::string who = "rank " + std::to_string(peer);
  if (member(peer).presence == Presence::kClosed)
    return PeerHasLeft(peer, who, member(peer).farewell);
  return Status::PeerLost(who + " closed its connection without a goodbye; see its output")
      .About({.ranks = {peer}});
}

void Hub::WakeAll() {
  for (Member& each : members_) each.changed.NotifyAll();
}

Status Hub::Send(int rank, int peer, Bytes payload) {
  MYDIST_CHECK(peer != rank && peer >= 0 && peer < size_);
  MYDIST_CHECK(static_cast<int64_t>(payload.size()) <= kMaxControlMessageBytes);
  MutexLock lock(mutex_);
  if (member(peer).presence != Presence::kHere) return PeerGone(peer);
  member(peer).mailbox.push_back({rank, std::move(payload)});
  if (!member(peer).attended) member(peer).news.NotifyAll();
  return Status::Ok();
}

Status Hub::CheckPeer(int peer) {
  MutexLock lock(mutex_);
  return member(peer).presence == Presence::kHere ? Status::Ok() : PeerGone(peer);
}

Result<std::optional<IncomingMessage>> Hub::Receive(int rank) {
  MutexLock lock(mutex_);
  Member& me = member(rank);
  if (!me.mailbox.empty()) {
    std::optional<IncomingMessage> message(std::move(me.mailbox.front()));
    me.mailbox.pop_front();
    return message;
  }
  if (me.losses.empty()) return std::optional<IncomingMessage>();
  const int peer = me.losses.front();
  me.losses.pop_front();
  return PeerGone(peer);
}

void Hub::Await(int rank, TimePoint deadline) {
  MutexLock lock(mutex_);
  Member& me = member(rank);
  bool in_time = true;
  while (in_time && !me.woken && (me.attended || !me.has_news())) {
    if (deadline == kNever) {
      me.news.Wait(mutex_);
    } else {
      in_time = me.news.WaitUntil(mutex_, deadline);
    }
  }
  me.woken = false;
}

void Hub::Wake(int rank) {
  MutexLock lock(mutex_);
  member(rank).woken = true;
  member(rank).news.NotifyAll();
}

void Hub::Attend(int rank, bool attended) {
  MutexLock lock(mutex_);
  member(rank).attended = attended;
  if (!attended && member(rank).has_news()) member(rank).news.NotifyAll();
}

void Hub::SetFarewell(int rank, const std::string& why) {
  MutexLock lock(mutex_);
  member(rank).farewell = why;
}

void Hub::Close(int rank) {
  MutexLock lock(mutex_);
  Depart(rank, Presence::kClosed);
}

void Hub::Leave(int rank) {
  MutexLock lock(mutex_);
  if (member(rank).presence != Presence::kHere) return;
  Depart(rank, Presence::kLost);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank) continue;
    member(peer).losses.push_back(rank);
    member(peer).news.NotifyAll();
  }
}

void Hub::Depart(int rank, Presence presence) {
  if (member(rank).presence != Presence::kHere) return;
  member(rank).presence = presence;
  departed_.push_back(rank);
  WakeAll();
}

Status Hub::Exchange(int rank, std::span<const SendTransfer> sends,
                     std::span<const ReceiveTransfer> receives, Watchdog* watchdog) {
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

void Hub::Post(Call& call) {
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
Status Hub::Deliver(Call& call) {
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

Result<Hub::Parcel*> Hub::AwaitParcel(Call& call, const ReceiveTransfer& receive) {
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

Status Hub::AwaitTaken(Call& call) {
  for (size_t i = 0; i < call.parcels.size(); ++i) {
    while (!call.parcels[i].done) MYDIST_RETURN_IF_ERROR(AwaitChange(call, call.sends[i].peer));
  }
  return Status::Ok();
}

Status Hub::AwaitChange(Call& call, int peer) {
  MYDIST_RETURN_IF_ERROR(CheckPeers(call));
  CondVar& changed = member(call.rank).changed;
  if (call.wait.next_look() == kNever) {
    changed.Wait(mutex_);
  } else {
    changed.WaitUntil(mutex_, call.wait.next_look());
  }
  const TimePoint now = Now();
  if (!call.wait.IsDue(now)) return Status::Ok();
  mutex_.Unlock();  // It comes back here, for messages.
  const Status watched = call.wait.Look({&peer, 1}, now);
  mutex_.Lock();
  return watched;
}

// An error when the call still needs a rank that has departed; names the one that went first, since
// the others may only have followed it. A rank departs outside of Exchange, so nothing of it is on
// the way.
Status Hub::CheckPeers(const Call& call) {
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

// After an error no peer may keep a pointer to this rank's memory.
void Hub::TakeBack(Call& call) {
  for (size_t i = 0; i < call.sends.size(); ++i) {
    Parcel& parcel = call.parcels[i];
    if (!parcel.taken) std::erase(channel(call.rank, call.sends[i].peer), &parcel);
    while (parcel.taken && !parcel.done) member(call.rank).changed.Wait(mutex_);
  }
}

Result<std::vector<Bytes>> Hub::Gather(int rank, int64_t round, const Bytes& mine) {
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

}  // namespace mydist::loopback
