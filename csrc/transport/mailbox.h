// Mailbox: control messages and losses on their way to the engine of one rank.
// Owned by what connects the ranks. Thread-safe: any thread puts, the thread with the engine role
// takes, one thread at a time awaits, anybody wakes.
#pragma once

#include <atomic>
#include <deque>
#include <utility>

#include "base/mutex.h"
#include "transport/control_plane.h"

namespace mydist {

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
    // Without the lock: a spin loop would hold it when another thread is about to put a message.
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
    while (!woken_ && (attended_ || news_count_.load() == 0)) {
      if (!changed_.WaitUntil(mutex_, deadline)) break;
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

}  // namespace mydist
