// NcclCommunicator: one communicator of a process set over NCCL, made when it is first needed.
// Owned by the process set. Open, Group and Close: the thread that drives the engine, one at a
// time; Check and Abort: any thread at any time. The communicator is non-blocking, so NCCL keeps no
// thread: what it has not finished is waited for here alone, in steps that see a deadline, an Abort
// and the seat's watch. The first failure is final: every later call returns it, until the
// communicator is aborted.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "algorithms/device/device_plugin.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/mutex.h"
#include "base/status.h"
#include "gpu/nccl_api.h"
#include "kernels/conversion.h"
#include "kernels/reduction.h"
#include "memory/device/device_memory.h"

namespace mydist {

// Not yet over is no failure.
inline bool IsFailure(nccl::Outcome outcome) {
  return outcome != nccl::Outcome::kSuccess && outcome != nccl::Outcome::kInProgress;
}

// Our place in a process set. What is pointed to outlives the communicator.
struct NcclSeat {
  const nccl::NcclApi* api = nullptr;
  Device* device = nullptr;
  std::string set_name;  // For messages, e.g. "process set 2".
  int rank = 0;          // In the set.
  int size = 1;
  WaitWatch watch{};  // Asked while Open and Group wait for others.
};

// How long is waited for others. Long, as they may still load a model; an Abort ends it at once.
struct NcclPatience {
  Duration call = std::chrono::minutes(5);      // Until all take part in what needs them all.
  Duration farewell = std::chrono::seconds(5);  // In the destructor.
  // What Abort allows a call of another thread to return by itself.
  Duration abort_grace = std::chrono::seconds(1);
};

// `id` of rank 0 arrives in `id` of every rank; all ranks call it at the same point. E.g. a
// Broadcast of the set's collectives on host memory.
using NcclIdBroadcast = std::function<Status(nccl::UniqueId* id)>;

class NcclCommunicator final : public DeviceLink {
 public:
  NcclCommunicator(NcclSeat seat, NcclIdBroadcast broadcast_id, const NcclPatience& patience = {});
  // Close with the farewell's patience, where it is neither closed nor aborted.
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const { return seat_.rank; }
  int size() const { return seat_.size; }
  const nccl::NcclApi& api() const { return *seat_.api; }
  bool is_open() const { return is_open_; }  // For the driving thread.

  // Makes the communicator, once; blocks until every rank of the set has called it. kTimeout;
  // kPeerLost when NCCL says that a peer is gone; kInternal with NCCL's words; what broadcast_id or
  // the watch returned; what Abort was told.
  Status Open();

  // Calls `calls(comm)`, an Outcome, between NCCL's GroupStart and GroupEnd, after Open. When this
  // returns, the work is on its streams. `what` (a literal) is for messages. Errors as of Open.
  template <typename Calls>
  Status Group(const char* what, const Calls& calls);

  Status Check() override;
  // Takes a lock that it may do without.
  void Abort(const Status& why) override MYDIST_NO_THREAD_SAFETY_ANALYSIS;
  Status Close(TimePoint deadline, const WaitWatch& watch) override;

 private:
  struct Limits {
    TimePoint deadline;
    const WaitWatch& watch;
  };
  Limits CallLimits() const { return {Now() + patience_.call, seat_.watch}; }
  // Until `outcome`, just returned by NCCL, is final. Not OK: Fail has been called.
  Status Await(const char* what, nccl::Outcome outcome, const Limits& limits);
  Status Begin(nccl::UniqueId* id);
  Status Initialize(const nccl::UniqueId& id);
  nccl::Outcome AskProgress();
  // `call` inside NCCL's turn, unless there is no communicator any more. With the device current:
  // on a thread without one, NCCL would start the first GPU, with hundreds of MB of its memory.
  Status CallLocked(const std::function<void(nccl::Comm comm)>& call) MYDIST_EXCLUDES(call_mutex_);
  nccl::Outcome Destroy(nccl::Comm comm);
  // What ended the communicator, or OK.
  Status Ended() MYDIST_EXCLUDES(ended_mutex_);
  // Notes `status` unless something has ended the communicator before; returns what did.
  Status Fail(Status status) MYDIST_EXCLUDES(ended_mutex_);
  Status Describe(const char* what, nccl::Outcome outcome);
  std::string Where() const;
  bool LockWithin(Duration grace) MYDIST_NO_THREAD_SAFETY_ANALYSIS;
  // `called`: what the calls of the group returned.
  nccl::Outcome EndGroup(nccl::Outcome called);

  const NcclSeat seat_;
  const NcclIdBroadcast broadcast_id_;
  const NcclPatience patience_;
  bool is_open_ = false;  // Of the driving thread.

  Mutex call_mutex_;  // Held inside NCCL, which takes one call per communicator at a time.
  // Set while call_mutex_ is held; taken away by the call that ends it.
  std::atomic<nccl::Comm> comm_{nullptr};
  Mutex ended_mutex_;
  Status ended_ MYDIST_GUARDED_BY(ended_mutex_);
};

template <typename Calls>
Status NcclCommunicator::Group(const char* what, const Calls& calls) {
  MYDIST_RETURN_IF_ERROR(Open());
  nccl::Outcome outcome = nccl::Outcome::kSuccess;
  MYDIST_RETURN_IF_ERROR(CallLocked([&](nccl::Comm comm) {
    outcome = api().GroupStart();
    if (outcome == nccl::Outcome::kSuccess) outcome = EndGroup(calls(comm));
  }));
  return Await(what, outcome, CallLimits());
}

// NcclReduction: how one of our reductions is put to NCCL (reduce). Pure.
// What NCCL cannot do, scales that are no factor of a floating-point sum, is left to a pass before
// and one after. The numbers differ from kernels/scale.h in this: NCCL adds in an order of its own,
// 16-bit floats may be rounded to 16 bits at every step, and the factor of a sum is one number,
// rounded to the elements' type and multiplied before the sum.
struct NcclReduction {
  nccl::ElementType type = nccl::ElementType::kFloat32;
  int64_t element_bytes = 4;        // Of ours.
  int64_t numbers_per_element = 1;  // A complex element is two numbers for NCCL.
  nccl::ReductionKind kind = nccl::ReductionKind::kSum;
  // The factor of every contribution of a PreMulSum; `kind` is then kSum.
  std::optional<double> multiplier;
  Factor before{};  // What is left for a pass over each contribution,
  Factor after{};   // and for one over the result.
};

// Whether NCCL can: not Adasum, no int16, of complex numbers only sums.
bool NcclReduces(ReduceOp op, DataType dtype);

// `reduction` is resolved, and NcclReduces it; `size` ranks take part. A factor that shrinks is
// applied before the sum, where it also keeps float16 from overflowing; one that grows, after it.
// A bool other than 0 and 1 counts as its byte does: NCCL knows no bool.
NcclReduction NcclReductionOf(const Reduction& reduction, int size);

// `value` as NCCL reads a scalar of `type`, which is a floating-point one.
std::array<uint8_t, 8> NcclScalarOf(double value, nccl::ElementType type);

}  // namespace mydist
