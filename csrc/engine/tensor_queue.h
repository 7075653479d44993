// TensorQueue: the mailbox between callers (any thread) and the engine; the "enqueue" step.
// Owned by the engine. Push from any thread; Drain and Close from the thread that drives the
// engine.
// One Mutex, held only to move elements, never across a callback. FIFO. The queue does not look
// inside its items: what has to come out in one piece, like a group of tensors, is one item.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/handle_table.h"
#include "engine/submission.h"

namespace mydist {

enum class Pushed {
  kFirst,   // The first that is due: wake the engine.
  kBehind,  // Not due, or another one is: the engine has been woken for that.
  kClosed,  // Refused; the item is dropped.
};

template <typename T>
class TensorQueue {
 public:
  [[nodiscard]] Pushed Push(T item) {
    MutexLock lock(mutex_);
    if (closed_) return Pushed::kClosed;
    items_.push_back(std::move(item));
    return std::exchange(has_due_, true) ? Pushed::kBehind : Pushed::kFirst;
  }

  // The same of what is not due: it waits until something is, or the engine looks anyway.
  [[nodiscard]] Pushed PushUnhurried(T item) {
    MutexLock lock(mutex_);
    if (closed_) return Pushed::kClosed;
    items_.push_back(std::move(item));
    return Pushed::kBehind;
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

  // Refuses every later Push and hands back what is not drained. May be called again.
  [[nodiscard]] std::vector<T> Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    return std::exchange(items_, {});
  }

 private:
  Mutex mutex_;
  std::vector<T> items_ MYDIST_GUARDED_BY(mutex_);
  bool has_due_ MYDIST_GUARDED_BY(mutex_) = false;  // Since the last Drain.
  bool closed_ MYDIST_GUARDED_BY(mutex_) = false;
};

// PendingTable: the tensors this rank has enqueued and not yet completed.
// Owned and used by the thread that drives the engine; no lock. Each name is there at most once per
// process set (the HandleTable refuses a second one at the call).

struct PendingTensor {
  Submission submission;
  Handle handle = 0;
  TimePoint since;  // It has been in flight.

  TensorKeyView key() const { return {submission.request.process_set, submission.request.name}; }
};

class PendingTable {
 public:
  void Add(PendingTensor tensor) {
    TensorKey key(tensor.key());
    const bool added = tensors_.emplace(std::move(key), std::move(tensor)).second;
    MYDIST_CHECK(added);
  }

  // Null when this rank has no such tensor.
  PendingTensor* Find(TensorKeyView key) {
    const auto it = tensors_.find(key);
    return it == tensors_.end() ? nullptr : &it->second;
  }

  // Removes a tensor that is there and releases its memory; gives its handle and its record in the
  // FlightRecorder. `key` must not view the tensor's own name.
  std::pair<Handle, int64_t> Remove(TensorKeyView key) {
    const auto it = tensors_.find(key);
    MYDIST_CHECK(it != tensors_.end());
    const std::pair<Handle, int64_t> removed{it->second.handle, it->second.submission.record};
    tensors_.erase(it);
    return removed;
  }

  std::vector<TensorKey> Keys() const {
    std::vector<TensorKey> keys;
    keys.reserve(tensors_.size());
    for (const auto& [key, tensor] : tensors_) keys.push_back(key);
    return keys;
  }

  std::vector<TensorKey> KeysOf(Handle handle) const {
    std::vector<TensorKey> keys;
    for (const auto& [key, tensor] : tensors_) {
      if (tensor.handle == handle) keys.push_back(key);
    }
    return keys;
  }

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [key, tensor] : tensors_) visit(tensor);
  }

  void Clear() { tensors_.clear(); }
  bool empty() const { return tensors_.empty(); }

 private:
  std::map<TensorKey, PendingTensor, TensorKeyLess> tensors_;
};

}  // namespace mydist
