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
  kFirst,   // The first that is due: wake the engine.
  kBehind,  // Not due, or another one is: the engine has been woken for that.
  kClosed,  // Refused; the items are dropped.
};

template <typename T>
class TensorQueue {
 public:
  [[nodiscard]] Pushed Push(T item) {
    std::vector<T> items;
    items.push_back(std::move(item));
    return Push(std::move(items));
  }

  // All or none: a group enters in one piece. An empty vector changes nothing.
  [[nodiscard]] Pushed Push(std::vector<T> items) {
    MutexLock lock(mutex_);
    const bool changes = !items.empty();
    if (!Append(std::move(items))) return Pushed::kClosed;
    return changes && !std::exchange(has_due_, true) ? Pushed::kFirst : Pushed::kBehind;
  }

  // The same of what is not due: it waits until something is, or the engine looks anyway.
  [[nodiscard]] Pushed PushUnhurried(std::vector<T> items) {
    MutexLock lock(mutex_);
    return Append(std::move(items)) ? Pushed::kBehind : Pushed::kClosed;
  }

  // Takes out everything, oldest first. Never blocks.
  [[nodiscard]] std::vector<T> Drain() {
    MutexLock lock(mutex_);
    has_due_ = false;
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
  // False when it is closed.
  bool Append(std::vector<T> items) MYDIST_REQUIRES(mutex_) {
    if (closed_) return false;
    items_.insert(items_.end(), std::make_move_iterator(items.begin()),
                  std::make_move_iterator(items.end()));
    return true;
  }

  Mutex mutex_;
  std::vector<T> items_ MYDIST_GUARDED_BY(mutex_);
  bool has_due_ MYDIST_GUARDED_BY(mutex_) = false;  // Since the last Drain.
  bool closed_ MYDIST_GUARDED_BY(mutex_) = false;
};

}  // namespace mydist
