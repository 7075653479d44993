// Response: one item of the stream the root decides and every rank executes in the same order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "controller/messages/request.h"

namespace mydist {

// What all ranks agreed on for one tensor; shared by the cache and the engine, never changed.
struct Agreement {
  // Rank-independent: first dim 0 for allgather and alltoall, device kCpuDevice or 0 (any GPU).
  Request request;
  // Of what GathersRows: first dimension per rank of the process set, in rank order.
  std::vector<int64_t> first_dims;
};

enum class ResponseKind : uint8_t {
  kReady,     // `agreement` is ready on all ranks that take part, of which this is one: execute it.
              // When this rank has joined it has not submitted it and contributes neutral elements.
  kError,     // `name`/`process_set` cannot be executed: complete it with `status`.
  kStall,     // Warning: `status.message()` says which ranks `name` waits for. Log it.
  kDeparted,  // Rank `rank` has left (shutdown or exit). Nothing can become ready any more:
              // complete everything pending and later with kAborted naming that rank.
  kFinished,  // Every rank has departed: leave the engine loop.
  kTimelineStart,  // Start recording; `mark_cycles` in flag.
  kTimelineStop,
  kAllJoined,  // Every rank has joined, `rank` last: they are all back.
};

struct Response {
  ResponseKind kind = ResponseKind::kReady;
  std::shared_ptr<const Agreement> agreement;
  std::string name;
  ProcessSetId process_set = kGlobalProcessSet;
  Status status;
  int32_t rank = -1;
  ProcessSetId added_set = kGlobalProcessSet;  // kReady of kAddProcessSet: the number it got.
  bool flag = false;
};

// The numbers of calls without a name (base/call_name.h), in what ranks agree on: calls of a
// training loop have another one in each step, and are the same but for it. Pure.

// Of the request's name. Nothing in other names, and where the group has a number too, but another.
std::optional<uint64_t> CallNumber(const Request& request);

// The same call with another number, in its group as well; unchanged if it has none.
Agreement WithCallNumber(Agreement agreement, uint64_t number);

// Stream: the one sequence of decisions of the root, handled by every rank in the same order.
// Pure data. A segment is a piece of it on its way down the tree; the root ends what it decided in
// one cycle with kBoundary, and what lies between two boundaries is planned (fused) together.
// The position of a vertex is the number of items it has applied, boundaries included.

enum class StreamKind : uint8_t {
  kBoundary = 0,
  kReadySlot = 1,       // process_set, slot
  kReadyAgreement = 2,  // agreement; everybody caches it
  kError = 3,           // process_set, name, op, groups, ranks, missing, code, text, hint
  kInvalidate = 4,      // process_set, slot
  kStall = 5,           // process_set, name, text
  kDeparted = 6,        // rank, text
  kFinished = 7,
  kTimelineStart = 8,  // flag: mark cycles
  kTimelineStop = 9,
  kAllJoined = 10,  // rank: the last one that joined
  kFreeze = 11,     // frozen
  kThaw = 12,
};
inline constexpr int kStreamKindCount = 13;

// Whether the item is about a tensor of one process set, rather than about the whole job.
inline bool ConcernsProcessSet(StreamKind kind) {
  return kind >= StreamKind::kReadySlot && kind <= StreamKind::kStall;
}

// Negotiation rests: the last `length` tensors of the stream, which have come `repeats` times, come
// again and again.
struct FrozenStep {
  uint32_t length = 0;
  uint32_t repeats = 0;
  uint64_t hash = 0;  // Of the buckets.

  bool operator==(const FrozenStep&) const = default;
};

struct StreamItem {
  StreamKind kind = StreamKind::kBoundary;
  ProcessSetId process_set = kGlobalProcessSet;  // Of what ConcernsProcessSet.
  uint32_t slot = 0;
  std::shared_ptr<const Agreement> agreement;
  StatusCode code = StatusCode::kOk;
  std::string name;
  std::string text;
  std::string hint;                 // kError: what to do, where that is more than usual.
  std::vector<std::string> groups;  // Groups whose members fail with `name`.
  std::vector<int32_t> ranks;    // kError: the ranks that take part, as in the request. Empty: all.
  std::vector<int32_t> missing;  // kError, kStall: the ranks to blame; empty: all or none.
  OpKind op = OpKind::kAllreduce;  // kError: of `name`.
  int32_t rank = -1;
  bool flag = false;
  FrozenStep frozen;
};

struct StreamSegment {
  uint64_t start = 0;  // Position before the first item.
  std::vector<StreamItem> items;
};

// Whether an error item ends the negotiation of this tensor.
inline bool Ends(const StreamItem& error, const Request& request) {
  if (error.name == request.name) return true;
  return !request.group.empty() &&
         std::find(error.groups.begin(), error.groups.end(), request.group) != error.groups.end();
}

// The error that the callers of its tensors get.
inline Status ErrorOf(const StreamItem& error) {
  return Status(error.code, error.text)
      .About({.operation = std::string(OpKindName(error.op)),
              .tensor = error.name,
              .phase = "negotiate",
              .ranks = {error.missing.begin(), error.missing.end()},
              .hint = error.hint});
}

}  // namespace mydist
