#include "gpu/nccl_communicator.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <thread>
#include <utility>

#include "base/status.h"
#include "kernels/element.h"

namespace mydist {
namespace {

using nccl::Comm;
using nccl::ElementType;
using nccl::Outcome;
using nccl::ReductionKind;

// A launch is over in microseconds; peers that are still on their way may take minutes.
class Patience {
 public:
  void Pause() {
    if (Now() - begin_ < kEager) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }

 private:
  static constexpr Duration kEager = std::chrono::milliseconds(2);
  static constexpr Duration kNap = std::chrono::microseconds(100);
  const TimePoint begin_ = Now();
};

// NCCL's ids are never all zeros: rank 0 sends this instead of one.
bool IsEmpty(const nccl::UniqueId& id) {
  return std::all_of(std::begin(id.internal), std::end(id.internal),
                     [](char byte) { return byte == 0; });
}

// By DataType; none: NCCL has no such elements. A complex number is two.
constexpr std::array<std::optional<ElementType>, kDataTypeCount> kElementTypes = {
    ElementType::kUint8,   ElementType::kInt8,    std::nullopt,           ElementType::kInt32,
    ElementType::kInt64,   ElementType::kFloat16, ElementType::kBfloat16, ElementType::kFloat32,
    ElementType::kFloat64, ElementType::kUint8,   ElementType::kFloat32,  ElementType::kFloat64,
    std::nullopt,          std::nullopt};

std::optional<ElementType> ElementTypeOf(DataType dtype) {
  return kElementTypes[static_cast<size_t>(dtype)];
}

// Of bytes that are 0 or 1, the largest is their "or" and the smallest their "and".
ReductionKind KindOf(ReduceOp op, DataType dtype) {
  const bool is_bool = dtype == DataType::kBool;
  switch (op) {
    case ReduceOp::kMin:
      return ReductionKind::kMin;
    case ReduceOp::kMax:
      return ReductionKind::kMax;
    case ReduceOp::kProduct:
      return is_bool ? ReductionKind::kMin : ReductionKind::kProd;
    default:
      return is_bool ? ReductionKind::kMax : ReductionKind::kSum;
  }
}

template <typename T>
std::array<uint8_t, 8> Stored(T value) {
  std::array<uint8_t, 8> bytes{};
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// Whether rounding `factor` to `type` costs no more than half a unit in the last place.
bool IsNormalIn(ElementType type, double factor) {
  const double magnitude = std::abs(factor);
  switch (type) {
    case ElementType::kFloat16:
      return magnitude >= 0x1p-14 && magnitude <= 65504.0;
    case ElementType::kBfloat16:
      return magnitude >= 0x1p-126 && magnitude <= 0x1.fep127;
    case ElementType::kFloat32:
      return magnitude >= 0x1p-126 && magnitude <= std::numeric_limits<float>::max();
    default:
      return std::isnormal(factor);
  }
}

void FoldFactors(const Reduction& reduction, int size, NcclReduction& plan) {
  if (reduction.prescale == 1.0 && reduction.postscale == 1.0 && reduction.divisor == size) {
    if (size > 1) plan.kind = ReductionKind::kAvg;
    plan.after = {};
    return;
  }
  const double after = reduction.postscale / static_cast<double>(reduction.divisor);
  const bool shrinks = std::abs(after) <= 1.0;
  const double multiplier = shrinks ? reduction.prescale * after : reduction.prescale;
  if (multiplier != 1.0 && !IsNormalIn(plan.type, multiplier)) return;
  if (multiplier != 1.0) plan.multiplier = multiplier;
  plan.before = {};
  if (shrinks) plan.after = {};
}

}  // namespace

NcclCommunicator::NcclCommunicator(NcclSeat seat, NcclIdBroadcast broadcast_id,
                                   const NcclPatience& patience)
    : seat_(std::move(seat)), broadcast_id_(std::move(broadcast_id)), patience_(patience) {}

NcclCommunicator::~NcclCommunicator() {
  if (comm_.load() == nullptr) return;
  // Callers that need the error call Close.
  if (const Status closed = Close(Now() + patience_.farewell, nullptr); !closed.ok()) {
    Abort(closed);
  }
}

Status NcclCommunicator::Open() {
  MYDIST_RETURN_IF_ERROR(Ended());
  if (is_open_) return Status::Ok();
  nccl::UniqueId id{};
  if (Status begun = Begin(&id); !begun.ok()) return Fail(std::move(begun));
  if (Status made = Initialize(id); !made.ok()) return Fail(std::move(made));
  is_open_ = true;
  return Status::Ok();
}

Status NcclCommunicator::Begin(nccl::UniqueId* id) {
  Outcome outcome = Outcome::kSuccess;
  if (seat_.rank == 0) {
    outcome = api().GetUniqueId(id);
    if (outcome != Outcome::kSuccess) *id = {};
  }
  MYDIST_RETURN_IF_ERROR(broadcast_id_(id));  // Also after a failure: the others are waiting.
  if (outcome != Outcome::kSuccess) return Describe("making an id for", outcome);
  if (!IsEmpty(*id)) return Status::Ok();
  return Status::Internal("NCCL failed in making an id for the communicator" + Where() +
                          ": rank 0 of the set failed; see its message");
}

Status NcclCommunicator::Initialize(const nccl::UniqueId& id) {
  Outcome outcome = Outcome::kSuccess;
  // NCCL takes the device that is current.
  MYDIST_RETURN_IF_ERROR(seat_.device->CallWithCurrent([&] {
    MutexLock lock(call_mutex_);
    nccl::CommConfig config;
    config.blocking = 0;
    Comm comm = nullptr;
    outcome = api().CommInitRankConfig(&comm, seat_.size, id, seat_.rank, &config);
    comm_.store(comm);
    return Status::Ok();
  }));
  return Await("making the communicator", outcome, CallLimits());
}

Status NcclCommunicator::Await(const char* what, Outcome outcome, const Limits& limits) {
  Patience patience;
  while (outcome == Outcome::kInProgress) {
    MYDIST_RETURN_IF_ERROR(Ended());
    if (limits.watch) {
      if (Status news = limits.watch(); !news.ok()) return Fail(std::move(news));
    }
    if (Now() >= limits.deadline) {
      return Fail(Status::Timeout("NCCL has not finished " + std::string(what) + Where() +
                                  " in time. Check that all ranks of the set run and that NCCL can "
                                  "reach them (NCCL_DEBUG=INFO shows its attempts)"));
    }
    patience.Pause();
    outcome = AskProgress();
  }
  // An Abort while NCCL still works ends the wait with an outcome of its own.
  MYDIST_RETURN_IF_ERROR(Ended());
  return outcome == Outcome::kSuccess ? Status::Ok() : Fail(Describe(what, outcome));
}

Outcome NcclCommunicator::AskProgress() {
  MutexLock lock(call_mutex_);
  const Comm comm = comm_.load();
  if (comm == nullptr) return Outcome::kSuccess;  // Ended by Abort, which has said why.
  Outcome progress = Outcome::kSuccess;
  const Outcome asked = api().CommGetAsyncError(comm, &progress);
  return IsFailure(asked) ? asked : progress;
}

// Also after a failure: an open group would swallow what this thread calls next.
Outcome NcclCommunicator::EndGroup(Outcome called) {
  const Outcome ended = api().GroupEnd();
  return IsFailure(called) ? called : ended;
}

Status NcclCommunicator::Check() {
  MYDIST_RETURN_IF_ERROR(Ended());
  if (!call_mutex_.TryLock()) return Status::Ok();  // The thread inside checks by itself.
  Outcome seen = Outcome::kSuccess;
  if (const Comm comm = comm_.load(); comm != nullptr) {
    const Outcome asked = api().CommGetAsyncError(comm, &seen);
    if (IsFailure(asked)) seen = asked;
  }
  call_mutex_.Unlock();
  return IsFailure(seen) ? Fail(Describe("work on the device", seen)) : Status::Ok();
}

void NcclCommunicator::Abort(const Status& why) {
  MYDIST_CHECK(!why.ok());
  (void)Fail(why).ok();
  // A call that does not return (the driver's queue is full, say) returns only when the work before
  // it ends, so it is no reason not to abort.
  const bool alone = LockWithin(patience_.abort_grace);
  Comm comm = comm_.exchange(nullptr);
  const auto abort = [&] {
    if (comm != nullptr) (void)api().CommAbort(std::exchange(comm, nullptr));
    return Status::Ok();
  };
  if (comm != nullptr) (void)seat_.device->CallWithCurrent(abort).ok();
  (void)abort().ok();  // Also where the device cannot be made current any more.
  if (alone) call_mutex_.Unlock();
}

bool NcclCommunicator::LockWithin(Duration grace) {
  Patience patience;
  const TimePoint deadline = Now() + grace;
  while (!call_mutex_.TryLock()) {
    if (Now() >= deadline) return false;
    patience.Pause();
  }
  return true;
}

Status NcclCommunicator::Close(TimePoint deadline, const WaitWatch& watch) {
  Status status = Ended();
  if (status.ok() && comm_.load() != nullptr) {
    Outcome outcome = Outcome::kSuccess;
    status = CallLocked([&](Comm comm) { outcome = api().CommFinalize(comm); });
    if (status.ok()) status = Await("closing the communicator", outcome, {deadline, watch});
  }
  MYDIST_RETURN_IF_ERROR(status);
  Outcome destroyed = Outcome::kSuccess;
  const Status called = CallLocked([&](Comm comm) {
    comm_.store(nullptr);
    destroyed = Destroy(comm);
  });
  (void)Fail(Status::Aborted("the communicator" + Where() + " was closed")).ok();
  MYDIST_RETURN_IF_ERROR(called);
  return IsFailure(destroyed) ? Describe("freeing the communicator", destroyed) : Status::Ok();
}

// One that has failed since is aborted: NCCL's Destroy would return early there, and leave a group
// open in this thread, which would swallow what it calls next.
Outcome NcclCommunicator::Destroy(Comm comm) {
  Outcome seen = Outcome::kSuccess;
  const Outcome asked = api().CommGetAsyncError(comm, &seen);
  if (asked == Outcome::kSuccess && seen == Outcome::kSuccess) return api().CommDestroy(comm);
  (void)api().CommAbort(comm);
  return IsFailure(asked) ? asked : seen;
}

Status NcclCommunicator::CallLocked(const std::function<void(Comm comm)>& call) {
  if (comm_.load() == nullptr) return Status::Ok();  // Never made, or ended by Abort.
  const Status entered = seat_.device->CallWithCurrent([&] {
    MutexLock lock(call_mutex_);
    const Comm comm = comm_.load();
    if (comm != nullptr) call(comm);
    return Status::Ok();
  });
  return entered.ok() ? entered : Fail(entered);
}

Status NcclCommunicator::Ended() {
  MutexLock lock(ended_mutex_);
  return ended_;
}

Status NcclCommunicator::Fail(Status status) {
  MutexLock lock(ended_mutex_);
  if (ended_.ok()) ended_ = std::move(status);
  return ended_;
}

Status NcclCommunicator::Describe(const char* what, Outcome outcome) {
  std::string text = "NCCL failed in " + std::string(what) + Where() + ": " +
                     api().GetErrorString(outcome) + " (code " +
                     std::to_string(static_cast<int>(outcome)) + ")";
  if (api().GetLastError != nullptr) {
    const char* last = api().GetLastError(nullptr);
    if (last != nullptr && *last != '\0') text += "; NCCL reports: " + std::string(last);
  }
  text += "; NCCL_DEBUG=WARN shows more";
  return outcome == Outcome::kRemoteError ? Status::PeerLost(std::move(text))
                                          : Status::Internal(std::move(text));
}

std::string NcclCommunicator::Where() const {
  return " of " + seat_.set_name + " (its rank " + std::to_string(seat_.rank) + " of " +
         std::to_string(seat_.size) + ", device " + std::to_string(seat_.device->index()) + ")";
}

bool NcclReduces(ReduceOp op, DataType dtype) {
  if (op == ReduceOp::kAdasum || !HasMeaning(op, dtype) || !ElementTypeOf(dtype)) return false;
  return !IsComplex(dtype) || op == ReduceOp::kSum || op == ReduceOp::kAverage;
}

NcclReduction NcclReductionOf(const Reduction& reduction, int size) {
  const std::optional<ElementType> type = ElementTypeOf(reduction.dtype);
  MYDIST_CHECK(type.has_value());
  NcclReduction plan;
  plan.type = *type;
  plan.element_bytes = SizeOf(reduction.dtype);
  plan.numbers_per_element = IsComplex(reduction.dtype) ? 2 : 1;
  plan.kind = KindOf(reduction.op, reduction.dtype);
  plan.before = {.multiplier = reduction.prescale};
  plan.after = {.multiplier = reduction.postscale, .divisor = reduction.divisor};
  // NCCL's factors of integers wrap around or round in another way than ours.
  const bool is_integer = IsInteger(reduction.dtype) || reduction.dtype == DataType::kBool;
  if (reduction.op == ReduceOp::kSum && !is_integer) FoldFactors(reduction, size, plan);
  return plan;
}

std::array<uint8_t, 8> NcclScalarOf(double value, ElementType type) {
  const auto single = static_cast<float>(value);
  switch (type) {
    case ElementType::kFloat16:
      return Stored(FloatToHalf(single));
    case ElementType::kBfloat16:
      return Stored(FloatToBfloat16(single));
    case ElementType::kFloat32:
      return Stored(single);
    case ElementType::kFloat64:
      return Stored(value);
    default:
      MYDIST_CHECK(false);
  }
}

}  // namespace mydist
