// Mesh: everything the two planes of one Gloo job share: the connections, what is known about the
// peers, the frames on their way out and the mailbox of those that came in.
// Owned jointly by control plane and transport; the last one closes the connections. Thread-safe.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/control_plane.h"
#include "transport/gloo/gloo_context.h"
#include "transport/gloo/outbox.h"
#include "transport/gloo/peer_states.h"

namespace mydist {

// Mailbox: control messages and losses on their way from the receiver threads to the engine.
// Owned by the mesh. Thread-safe: any receiver thread puts, who holds the engine role takes, one
// thread at a time awaits, anybody wakes.

class Mailbox {
 public:
  void Put(IncomingMessage message) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
    NoteNews();
  }

  void PutLoss(Status loss) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    losses_.push_back(std::move(loss));
    NoteNews();
  }

  void Wake() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyOne();
  }

  // As ControlPlane::Receive.
  Result<std::optional<IncomingMessage>> Take() MYDIST_EXCLUDES(mutex_) {
    // Without the lock, which a look in a spin loop would hold just when somebody has to put.
    if (news_count_.load(std::memory_order_acquire) == 0) return std::optional<IncomingMessage>();
    MutexLock lock(mutex_);
    news_count_.fetch_sub(1, std::memory_order_relaxed);
    if (!messages_.empty()) {
      std::optional<IncomingMessage> message(std::move(messages_.front()));
      messages_.pop_front();
      return message;
    }
    Status loss = std::move(losses_.front());
    losses_.pop_front();
    return loss;
  }

  // As ControlPlane::Await.
  void Await(TimePoint deadline) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    bool in_time = true;
    while (in_time && !woken_ && (attended_ || news_count_.load() == 0)) {
      if (deadline == kNever) {
        changed_.Wait(mutex_);
      } else {
        in_time = changed_.WaitUntil(mutex_, deadline);
      }
    }
    woken_ = false;
  }

  // As ControlPlane::Attend.
  void Attend(bool attended) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    attended_ = attended;
    if (!attended_ && news_count_.load() > 0) changed_.NotifyOne();
  }

 private:
  void NoteNews() MYDIST_REQUIRES(mutex_) {
    news_count_.fetch_add(1, std::memory_order_release);
    if (!attended_) changed_.NotifyOne();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<IncomingMessage> messages_ MYDIST_GUARDED_BY(mutex_);
  std::deque<Status> losses_ MYDIST_GUARDED_BY(mutex_);
  std::atomic<int64_t> news_count_{0};  // Of both; changed under the mutex.
  bool woken_ MYDIST_GUARDED_BY(mutex_) = false;
  bool attended_ MYDIST_GUARDED_BY(mutex_) = false;
};

class Mesh {
 public:
  // `places` says for every rank where it runs, e.g. "host a, pid 17"; for messages.
  Mesh(std::unique_ptr<GlooContext> context, std::vector<std::string> places);

  int rank() const { return context_->rank(); }
  int size() const { return context_->size(); }
  GlooContext& context() { return *context_; }
  PeerStates& states() { return states_; }
  Mailbox& mailbox() { return mailbox_; }
  Outbox& outbox(int peer) { return *outboxes_[static_cast<size_t>(peer)]; }

  // "rank 3 (host a, pid 17)"
  std::string Name(int peer) const;

  // Records a loss, tells the engine (once per peer) and interrupts its transfers.
  void ReportLoss(int peer, const Status& reason);

  // What SayGoodbye gives as the reason where no connection was lost. Called by its caller.
  void SetFarewell(const std::string& why) { farewell_ = why; }

  // Tells every open peer that we leave, and why unless it is the job's end; then waits until all
  // have said goodbye too and our messages are out. kTimeout naming the ranks that did not, or the
  // loss.
  Status SayGoodbye(TimePoint deadline);

  // After a failed transfer the connections are unusable: says goodbye with the cause, so that the
  // peers blame the right rank and not us, and drops all connections. Bounded by kBreakGrace.
  void Break();

 private:
  static constexpr std::chrono::milliseconds kBreakGrace{200};

  const std::unique_ptr<GlooContext> context_;
  const std::vector<std::string> places_;
  PeerStates states_;
  Mailbox mailbox_;
  std::string farewell_;
  std::vector<std::unique_ptr<Outbox>> outboxes_;  // Element rank() is unused.
};

}  // namespace mydist
