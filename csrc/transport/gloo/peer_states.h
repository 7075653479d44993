// PeerStates: what is known about every peer of a Gloo mesh, and which one ended the job.
// Shared by the receiver threads (which learn of it), the control plane and the transport (which
// must stop waiting). Thread-safe. The first loss is the cause; later ones are its consequences.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "gloo/transport/unbound_buffer.h"

namespace mydist {

class PeerStates {
 public:
  explicit PeerStates(int size)
      : size_(size),
        states_(static_cast<size_t>(size), State::kOpen),
        farewells_(static_cast<size_t>(size)) {}
  PeerStates(const PeerStates&) = delete;
  PeerStates& operator=(const PeerStates&) = delete;

  // `peer` said goodbye, `why` is its reason if it has one: it will send nothing more, and its
  // connection may close. Interrupts a transfer that is waiting for it: what it sent before has
  // arrived before.
  void MarkDeparted(int peer, const std::string& why) MYDIST_EXCLUDES(mutex_);
  // The reason that `peer` gave.
  std::string farewell(int peer) const MYDIST_EXCLUDES(mutex_);

  // `peer` is lost. True when it is news. Interrupts a transfer that is waiting.
  bool MarkLost(int peer, const Status& reason) MYDIST_EXCLUDES(mutex_);

  // The first loss, if it is that of `peer`, has a reason that tells more: which signal has ended
  // the rank. True when that is news.
  bool Explain(int peer, const Status& reason) MYDIST_EXCLUDES(mutex_);

  bool IsOpen(int peer) const MYDIST_EXCLUDES(mutex_);
  // Whether it said goodbye and has not been lost since.
  bool HasDeparted(int peer) const MYDIST_EXCLUDES(mutex_);

  // OK, or the first loss.
  Status loss() const MYDIST_EXCLUDES(mutex_);
  // The rank of the first loss, or -1.
  int cause_rank() const MYDIST_EXCLUDES(mutex_);

  // Waits until no peer (or not `peer`) is open any more. False at `deadline`.
  bool AwaitAllEnded(int self, TimePoint deadline) MYDIST_EXCLUDES(mutex_);
  bool AwaitEnded(int peer, TimePoint deadline) MYDIST_EXCLUDES(mutex_);

  // Ranks but `self` that are still open, as text: "1, 3".
  std::string OpenRanks(int self) const MYDIST_EXCLUDES(mutex_);

  // How long a transfer with a peer may be waited for: not at all after any loss, and after the
  // peer's goodbye only for what is already there.
  enum class Patience { kNone, kBounded, kUnbounded };
  // The engine is about to wait for `buffer`, a transfer with `peer`. Until EndWait, MarkLost,
  // MarkDeparted and Interrupt end the wait. Other peers may give up the same one a little earlier:
  // until EndWait, their losses are taken for consequences and never become the cause.
  Patience BeginWait(gloo::transport::UnboundBuffer* buffer, int peer) MYDIST_EXCLUDES(mutex_);
  void EndWait() MYDIST_EXCLUDES(mutex_);
  // It has taken long enough. Nothing when there is no wait.
  void Interrupt() MYDIST_EXCLUDES(mutex_);

 private:
  enum class State { kOpen, kDeparted, kLost };

  void InterruptWait() MYDIST_REQUIRES(mutex_);

  const int size_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<State> states_ MYDIST_GUARDED_BY(mutex_);
  std::vector<std::string> farewells_ MYDIST_GUARDED_BY(mutex_);
  Status loss_ MYDIST_GUARDED_BY(mutex_);
  int cause_rank_ MYDIST_GUARDED_BY(mutex_) = -1;
  gloo::transport::UnboundBuffer* waited_for_ MYDIST_GUARDED_BY(mutex_) = nullptr;
  int waited_for_peer_ MYDIST_GUARDED_BY(mutex_) = -1;
  bool wait_is_bounded_ MYDIST_GUARDED_BY(mutex_) = false;
};

}  // namespace mydist
