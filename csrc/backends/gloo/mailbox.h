// Mailbox: control messages and losses on their way from the receiver threads to the engine.
// Owned by the mesh. Thread-safe: any receiver thread puts, the engine takes, anybody wakes.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "controller/control_plane.h"

namespace mydist {

class Mailbox {
 public:
  void Put(IncomingMessage message) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.NotifyOne();
  }

  void PutLoss(Status loss) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    losses_.push_back(std::move(loss));
    changed_.NotifyOne();
  }

  void Wake() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyOne();
  }

  // As ControlPlane::Receive.
  Result<std::optional<IncomingMessage>> Take(TimePoint deadline) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    bool in_time = true;
    for (;;) {
      if (!messages_.empty()) {
        std::optional<IncomingMessage> message(std::move(messages_.front()));
        messages_.pop_front();
        return message;
      }
      if (!losses_.empty()) {
        Status loss = std::move(losses_.front());
        losses_.pop_front();
        return loss;
      }
      if (std::exchange(woken_, false) || !in_time) return std::optional<IncomingMessage>();
      if (deadline == kNever) {
        changed_.Wait(mutex_);
      } else {
        in_time = changed_.WaitUntil(mutex_, deadline);
      }
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<IncomingMessage> messages_ MYDIST_GUARDED_BY(mutex_);
  std::deque<Status> losses_ MYDIST_GUARDED_BY(mutex_);
  bool woken_ MYDIST_GUARDED_BY(mutex_) = false;
};

}  // namespace mydist
