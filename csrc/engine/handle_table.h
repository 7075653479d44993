// HandleTable: tells callers when what they enqueued is complete, and how it ended.
// Shared between callers and the engine; one Mutex. A handle counts down its tensors; the first
// error wins. Handles are numbered from 1 and never reused. It also knows which names are in
// flight. Lives as long as the process: a handle outlives the engine that completed it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"
#include "world/process_set.h"

namespace mydist {

using Handle = int64_t;

// What callers are told who use one that was released, or never given out. kInvalidArgument.
MYDIST_EXPORT Status UnknownHandle(Handle handle);

// Which engine, of those that use the table one after the other.
using EngineTerm = int64_t;

// What makes a tensor in flight unique.
using TensorKey = std::pair<ProcessSetId, std::string>;
// Of one whose name another owner keeps.
using TensorKeyView = std::pair<ProcessSetId, std::string_view>;

// So that a tensor is found without a copy of its name.
struct TensorKeyLess {
  using is_transparent = void;
  bool operator()(const TensorKeyView& a, const TensorKeyView& b) const { return a < b; }
};

class MYDIST_EXPORT HandleTable {
 public:
  // A handle that completes when each of `tensors` has; none: complete at once. Their names are in
  // flight until then. kInvalidArgument naming a tensor that is already in flight; after Fail its
  // status. Nothing is opened on error. `operation`: see OldestInFlight; never freed.
  Result<Handle> Open(const std::vector<TensorKey>& tensors, std::string_view operation = {})
      MYDIST_EXCLUDES(mutex_);

  // `tensor` of the handle ended with `status`; its name may be used again. A handle whose owner
  // has released it meanwhile is fine.
  void Complete(Handle handle, TensorKeyView tensor, const Status& status) MYDIST_EXCLUDES(mutex_);

  // The engine of `term` is gone: every incomplete handle completes with `status`, no name is in
  // flight and every later Open gives the first such `status`, with its own operation and tensor
  // where that has none, until Reset. Nothing happens when another engine
  // has taken over: one that was left behind must not end its successor's collectives.
  void Fail(EngineTerm term, const Status& status) MYDIST_EXCLUDES(mutex_);
  // A new engine takes over; its term.
  EngineTerm Reset() MYDIST_EXCLUDES(mutex_);

  // Whether it is complete. kInvalidArgument for an unknown or already released handle.
  Result<bool> Poll(Handle handle) MYDIST_EXCLUDES(mutex_);

  // Blocks until complete, at most until `deadline`, and releases the handle: the outcome, or
  // nothing when the deadline passed first (the handle stays). kInvalidArgument as in Poll.
  Result<std::optional<Status>> Wait(Handle handle, TimePoint deadline) MYDIST_EXCLUDES(mutex_);

  // Forgets the handle without waiting.
  void Release(Handle handle) MYDIST_EXCLUDES(mutex_);

  // A tensor of the set that is in flight, if there is any.
  std::optional<std::string> NameInFlight(ProcessSetId set) MYDIST_EXCLUDES(mutex_);

  // The handle that has been incomplete for longest: its operation and the name of a tensor of it.
  std::optional<std::pair<std::string, std::string>> OldestInFlight() MYDIST_EXCLUDES(mutex_);

 private:
  struct Entry {
    int64_t remaining_count = 0;
    Status status;
    std::string_view operation;
  };

  // Why nothing is opened any more.
  Status FailureOf(const std::vector<TensorKey>& tensors, std::string_view operation) const
      MYDIST_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar completed_;
  Handle next_ MYDIST_GUARDED_BY(mutex_) = 1;
  std::unordered_map<Handle, Entry> entries_ MYDIST_GUARDED_BY(mutex_);
  std::map<TensorKey, Handle, TensorKeyLess> in_flight_ MYDIST_GUARDED_BY(mutex_);
  EngineTerm term_ MYDIST_GUARDED_BY(mutex_) = 0;
  Status failure_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist
