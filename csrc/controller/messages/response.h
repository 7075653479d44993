// Response: one item of the stream the root decides and every rank executes in the same order.
#pragma once

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

}  // namespace mydist
