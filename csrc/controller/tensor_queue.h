// TensorQueue: the mailbox between callers (any thread) and the engine; the "enqueue" step.
// Owned by the engine. Push from any thread; Drain and Close from whoever drives the engine.
// One Mutex, held only to move elements, never across a callback. FIFO; what was pushed in one call
// is drained together. A name that is already in flight is refused by the engine's pending table,
// which knows until when a name is in flight; the queue does not look inside its items.
#pragma once

#include <iterator>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace mydist {

enum class Pushed {
  kFirst,   // The queue was empty: wake the engine.
  kBehind,  // Others wait before it: the engine has been woken for them.
  kClosed,  // Refused; the items are dropped.
};

template <typename T>
class TensorQueue {
 public:
  [[nodiscard]] Pushed Push(T item) {
    MutexLock lock(mutex_);
    if (closed_) return Pushed::kClosed;
    items_.push_back(std::move(item));
    return items_.size() == 1 ? Pushed::kFirst : Pushed::kBehind;
  }

  // All or none: a group enters in one piece. An empty vector changes nothing.
  [[nodiscard]] Pushed Push(std::vector<T> items) {
    MutexLock lock(mutex_);
    if (closed_) return Pushed::kClosed;
    const bool was_empty = items_.empty();
    items_.insert(items_.end(), std::make_move_iterator(items.begin()),
                  std::make_move_iterator(items.end()));
    return was_empty && !items_.empty() ? Pushed::kFirst : Pushed::kBehind;
  }

  // Takes out everything, oldest first. Never blocks.
  [[nodiscard]] std::vector<T> Drain() {
    MutexLock lock(mutex_);
    return std::exchange(items_, {});
  }

  [[nodiscard]] bool empty() {
    MutexLock lock(mutex_);
    return items_.empty();
  }

  // Refuses every later Push and hands back what nobody has drained. May be called again.
  [[nodiscard]] std::vector<T> Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    return std::exchange(items_, {});
  }

 private:
  Mutex mutex_;
  std::vector<T> items_ MYDIST_GUARDED_BY(mutex_);
  bool closed_ MYDIST_GUARDED_BY(mutex_) = false;
};

}  // namespace mydist
