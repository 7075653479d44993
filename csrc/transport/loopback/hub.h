// Hub: what the ranks of a loopback job share; the "network" between N threads of one process.
// Owned jointly by all planes of the job. Called from every rank's thread; one Mutex guards all of
// it, tensors are copied outside of it. Each rank has a CondVar for tensors and one for Await,
// which the engine's own thread may be in while another thread moves tensors.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "transport/control_plane.h"
#include "transport/transport.h"

namespace mydist::loopback {

class Hub {
 public:
  explicit Hub(int size);
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  int size() const { return size_; }

  // Those of ControlPlane, for rank `rank`.
  Status Send(int rank, int peer, Bytes payload) MYDIST_EXCLUDES(mutex_);
  Status CheckPeer(int peer) MYDIST_EXCLUDES(mutex_);
  Result<std::optional<IncomingMessage>> Receive(int rank) MYDIST_EXCLUDES(mutex_);
  void Await(int rank, TimePoint deadline) MYDIST_EXCLUDES(mutex_);
  void Wake(int rank) MYDIST_EXCLUDES(mutex_);
  void Attend(int rank, bool attended) MYDIST_EXCLUDES(mutex_);
  void SetFarewell(int rank, const std::string& why) MYDIST_EXCLUDES(mutex_);
  void Close(int rank) MYDIST_EXCLUDES(mutex_);

  // Rank `rank` has gone: an orderly way after Close, otherwise as if it had died.
  void Leave(int rank) MYDIST_EXCLUDES(mutex_);

  // Transport::Exchange for rank `rank`; `watchdog` may be null.
  Status Exchange(int rank, std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives, Watchdog* watchdog)
      MYDIST_EXCLUDES(mutex_);

  // Round `round` (0, 1, …) of BootstrapExchange for rank `rank`.
  Result<std::vector<Bytes>> Gather(int rank, int64_t round, const Bytes& mine)
      MYDIST_EXCLUDES(mutex_);

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
    CondVar news;
    Presence presence = Presence::kHere;
    std::string farewell;
    bool woken = false;
    bool attended = false;
    std::deque<IncomingMessage> mailbox;
    std::deque<int> losses;  // Lost peers that Receive has yet to report.

    bool has_news() const { return !mailbox.empty() || !losses.empty(); }
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
  Status PeerGone(int peer) MYDIST_REQUIRES(mutex_);
  void WakeAll() MYDIST_REQUIRES(mutex_);

  // One call of Exchange.
  struct Call {
    int rank;
    std::span<const SendTransfer> sends;
    std::span<const ReceiveTransfer> receives;
    WatchedWait wait;
    std::deque<Parcel> parcels;  // Of each send; a deque, as the channels point into it.
    size_t delivered = 0;        // So many of `receives` are complete.
  };

  void Post(Call& call) MYDIST_REQUIRES(mutex_);
  Status Deliver(Call& call) MYDIST_EXCLUDES(mutex_);
  Result<Parcel*> AwaitParcel(Call& call, const ReceiveTransfer& receive) MYDIST_REQUIRES(mutex_);
  Status AwaitTaken(Call& call) MYDIST_REQUIRES(mutex_);
  // For something to do with `peer`. Lets go of the mutex meanwhile.
  Status AwaitChange(Call& call, int peer) MYDIST_REQUIRES(mutex_);
  void TakeBack(Call& call) MYDIST_REQUIRES(mutex_);
  Status CheckPeers(const Call& call) MYDIST_REQUIRES(mutex_);
  void Depart(int rank, Presence presence) MYDIST_REQUIRES(mutex_);

  const int size_;
  Mutex mutex_;
  std::deque<Member> members_ MYDIST_GUARDED_BY(mutex_);
  std::vector<int> departed_ MYDIST_GUARDED_BY(mutex_);  // Closed or lost ranks, first one first.
  std::vector<std::deque<Parcel*>> channels_ MYDIST_GUARDED_BY(mutex_);
  std::map<int64_t, Round> rounds_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist::loopback
