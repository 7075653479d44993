// Submission: one tensor on its way from the caller into the engine.
// Made by csrc/torch (or a test), moved into the TensorQueue, owned by the engine until complete.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "controller/messages/request.h"
#include "controller/messages/response.h"
#include "kernels/reduction.h"
#include "memory/device/device.h"
#include "memory/device/device_memory.h"
#include "world/process_set.h"

namespace mydist {

// Gives memory for a result whose shape only the negotiation tells. Called once per successful
// tensor by the thread that drives the engine and never with the GIL held; must not throw. The
// memory lives until the handle's owner lets go of it.
using OutputAllocator = std::function<Result<void*>(const Shape& shape)>;

// Told before completion what the operation found out besides tensors, by the thread that drives
// the engine and never with the GIL held; must not throw.
using NumbersCallback = std::function<void(const std::vector<int64_t>&)>;

// How soon the engine has to look at what was submitted.
enum class Pace {
  kNow,
  // More is about to follow, and a caller will wait: the engine is woken when enough has come
  // together to fill a bucket, or at the first wait or poll. A wake-up and a negotiation per small
  // gradient would cost backward more than they overlap.
  kWithMore,
  // The caller waits at once and drives the engine itself: no thread is woken. Should it not wait
  // after all, any poll, wait or release, or the next submission, wakes the engine.
  kDriven,
};

// The place of a tensor on a GPU among the work of the caller's streams. Shared with the caller,
// which reads `done` when the handle is complete.
struct DeviceOrder {
  // Keeps what the events below belong to; may be null.
  std::shared_ptr<Device> device{};
  // The input is there, and the output may be written, from here on.
  EventPointer ready;
  // Set by `allocate`: what it gave may be written from here on. Null: as `ready`.
  EventPointer allocated;
  // Set by the engine: from here on the result is there and the memory not used any more. After an
  // error null when nothing of it was begun.
  EventPointer done;
};

struct Submission {
  // With the GPU as this process counts it, whatever the other ranks' are.
  Request request;
  // Contiguous row-major elements, each as CarrierOf(request) says; may be null when the tensor is
  // empty.
  const void* input = nullptr;
  // Allreduce, broadcast, reduce and send/recv: as large as the input, may be the same memory.
  void* output = nullptr;
  // Allreduce of float16 or bfloat16: input and output are float32, cast on the way (compression).
  bool is_wide = false;
  // Allgather, alltoall, reducescatter, scatter, and gather at the root: the output comes from here
  // instead.
  OutputAllocator allocate;
  // Alltoall, and scatter at the root: rows for each rank, summing to the first dimension.
  std::vector<int64_t> splits;
  // Alltoall: the rows received from each rank; adding a process set: its number. May be empty.
  NumbersCallback on_numbers;
  // Null in host memory, else not null.
  std::shared_ptr<DeviceOrder> order;
  // Keeps the memory above alive; the engine lets go of it before the handle completes. Not where
  // something may still come to write there: after an error (world/late_writes.h), on a stream that
  // goes on, and in an engine that Shutdown left behind, whose handles fail while it is stuck.
  std::shared_ptr<void> keep_alive;
  int64_t record = -1;  // Of the FlightRecorder, by the engine.
};

// How the engine reduces the numbers of a request: an average of integers as a plain sum, without
// the factors, which all ranks agree on and the caller applies.
Reduction ReductionOf(const Request& request);

// NeutralSubmission: what a rank that has joined puts into a collective it did not submit: nothing
// where rows are gathered, elements that change nothing where they are reduced. Made by the engine;
// moved to a GPU by its executor.

// With host memory of its own for input and output, which is dropped with it.
Submission NeutralSubmission(const Agreement& agreement, const ProcessSet& set);

// Input and outputs of such a one lie on the seat's device from now on, where its stream finds
// them. `keep_alive` must be kept until the stream has passed. Errors: those of Device.
Status MoveNeutralTo(const StreamSeat& seat, Submission* submission);

}  // namespace mydist
