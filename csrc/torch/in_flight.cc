#include "torch/in_flight.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/stack.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "job/job.h"
#include "torch/bindings.h"
#include "torch/error_translation.h"
#include "torch/gil.h"
#include "torch/gpu_order.h"
#include "torch/tensor_adapter.h"
#include "world/late_writes.h"

namespace mydist {
namespace {

// Autograd and version counters ignore these operations, and inference tensors may be written in
// any mode, as by the engine.
using Unrecorded = at::AutoDispatchBelowADInplaceOrView;

constexpr int64_t kLowerBits = (int64_t{1} << 32) - 1;
constexpr double kUpperUnit = 4294967296.0;  // Of the upper half, in those of the lower one.

struct RangeOfDtype {
  double lowest;
  double highest;
};

RangeOfDtype RangeOf(at::ScalarType dtype) {
  if (dtype == at::kByte) return {0.0, 255.0};
  const double half = std::ldexp(1.0, static_cast<int>(8 * c10::elementSize(dtype)) - 1);
  return {-half, half - 1.0};  // The highest int64 is rounded to 2^63.
}

// Floating point as int64, truncated toward zero and saturated at the ends of `dtype`.
at::Tensor Truncated(const at::Tensor& scaled, at::ScalarType dtype) {
  const RangeOfDtype range = RangeOf(dtype);
  if (dtype != at::kLong) return scaled.clamp(range.lowest, range.highest).to(at::kLong);
  // 2^63 itself must not be cast.
  const double below = std::nextafter(range.highest, 0.0);
  return scaled.clamp(range.lowest, below)
      .to(at::kLong)
      .masked_fill_(scaled.gt(below), std::numeric_limits<int64_t>::max());
}

at::Tensor Halves(const at::Tensor& numbers) {
  return at::stack({numbers.bitwise_right_shift(32), numbers.bitwise_and(kLowerBits)}, -1);
}

// (upper · 2^32 + lower) ÷ divisor. All of it fits: the divisor is less than 2^31, and so is the
// carry of that many lower halves.
at::Tensor Divided(const at::Tensor& upper, const at::Tensor& lower, int64_t divisor) {
  const at::Tensor whole = upper + lower.bitwise_right_shift(32);
  const at::Tensor left = whole.remainder(divisor);  // Not negative, as the divisor is not.
  const at::Tensor rest = left * (kLowerBits + 1) + lower.bitwise_and(kLowerBits);
  at::Tensor floor = at::div(whole, divisor, "floor") * (kLowerBits + 1);
  floor += at::div(rest, divisor, "floor");
  // The floor is one below what a negative quotient with a rest truncates to.
  return floor += floor.lt(0).logical_and_(rest.remainder(divisor).ne(0));
}

namespace py = pybind11;

// How late Ctrl-C may be noticed; a handle that completes wakes the waiter at once.
constexpr std::chrono::milliseconds kSignalCheckInterval{100};

// Waits without the GIL, taking it only to look for Ctrl-C. Nothing when the engine does not know
// the handle: another thread has waited for it in the meantime, or this is a forked child.
std::optional<Status> Await(Handle handle) {
  bool is_interrupted = false;
  const auto outcome = process::WaitWhile(handle, kSignalCheckInterval, [&is_interrupted] {
    const WithGil gil;
    is_interrupted = PyErr_CheckSignals() != 0;
    return !is_interrupted;
  });
  if (is_interrupted) {
    const WithGil gil;
    const py::error_already_set error;
    // The other ranks have heard of the call: see names.py.
    py::setattr(error.value(), "_mydist_has_met", py::bool_(true));
    throw error;
  }
  return outcome.ok() ? *outcome : std::nullopt;
}

Status NotOurs(Handle handle) {
  const Status job = process::CurrentJob().status();
  return job.ok() ? UnknownHandle(handle) : job;
}

bool AnyFailed(const std::vector<Status>& outcomes) {
  return std::any_of(outcomes.begin(), outcomes.end(),
                     [](const Status& outcome) { return !outcome.ok(); });
}

// Storages that torch may not resize for as long as this lives.
class PinnedStorages {
 public:
  PinnedStorages() = default;
  ~PinnedStorages() {
    for (const c10::Storage& storage : storages_) {
      storage.unsafeGetStorageImpl()->set_resizable(true);
    }
  }
  PinnedStorages(const PinnedStorages&) = delete;
  PinnedStorages& operator=(const PinnedStorages&) = delete;

  void Add(const c10::Storage& storage) {
    storages_.push_back(storage);
    storage.unsafeGetStorageImpl()->set_resizable(false);
  }

 private:
  std::vector<c10::Storage> storages_;  // All of them could be resized.
};

// Null where none can be resized: it is pinned by another call, or the memory is not torch's own.
std::shared_ptr<void> Pinned(const std::vector<c10::Storage>& storages) {
  std::shared_ptr<PinnedStorages> pinned;
  for (const c10::Storage& storage : storages) {
    if (!storage || !storage.resizable()) continue;
    if (pinned == nullptr) pinned = std::make_shared<PinnedStorages>();
    pinned->Add(storage);
  }
  return pinned;
}

// The streams of a complete call follow the work that the engine did for it.
Status Follow(const InFlightCall& call) {
  if (call.orders.empty()) return Status::Ok();
  std::vector<c10::Storage> memory = call.storages;
  for (const at::Tensor& output : call.outputs) memory.push_back(output.storage());
  if (call.late != nullptr) {
    for (const at::Tensor& output : call.late->tensors) {
      if (output.defined()) memory.push_back(output.storage());
    }
  }
  return FollowResults(call.orders, memory);
}

at::Tensor ToTensor(const std::vector<int64_t>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

// Another tensor that shares the memory shares the version, too.
Status CheckNotWritten(const InFlightCall& call) {
  if (call.is_known_complete) return Status::Ok();
  for (const InFlightInput& input : call.inputs) {
    if (input.tensor._version() == input.version) continue;
    return Status::InvalidArgument(
        std::string(OpKindName(input.op)) + " '" + input.name +
        "': its input was changed while it was in flight, so the result may be wrong. Change it "
        "after synchronize(), or pass a clone().");
  }
  return Status::Ok();
}

Shape WithLastDim(const Shape& shape, int64_t size) {
  std::vector<int64_t> dims = shape.dims();
  dims.push_back(size);
  return Shape(std::move(dims));
}

// FiniteCheck: what MYDIST_CHECK_FINITE does, on the calling thread, before the engine has the
// tensors.

// The input as the caller has it: compression makes it narrower only later.
at::Tensor InputOf(const Submission& submission) {
  const Request& request = submission.request;
  const at::ScalarType dtype = submission.is_wide ? at::kFloat : ToScalarType(request.dtype);
  return at::from_blob(const_cast<void*>(submission.input),
                       {request.shape.ElementCount().value_or(0)},
                       at::TensorOptions().dtype(dtype).device(DeviceOf(submission)));
}

bool MayBeInfinite(ReduceOp op) { return op == ReduceOp::kMin || op == ReduceOp::kMax; }

InputValues ValuesOf(const Submission& submission) {
  const at::Tensor input = InputOf(submission);
  if (!input.is_floating_point() && !input.is_complex()) return InputValues::kAccepted;
  if (at::isfinite(input).all().item<bool>()) return InputValues::kAccepted;
  if (at::isnan(input).any().item<bool>()) return InputValues::kNan;
  return MayBeInfinite(submission.request.reduce_op) ? InputValues::kAccepted
                                                     : InputValues::kInfinite;
}

// Notes in each request of a reduction what its input has that a sum cannot have: NaN, or infinite
// values. Min and Max take infinite ones. On a GPU it waits for the input.
void NoteValues(std::vector<Submission>& submissions) {
  const at::NoGradGuard no_grad;
  for (Submission& submission : submissions) {
    if (!Reduces(submission.request.op) || submission.input == nullptr) continue;
    submission.request.values = ValuesOf(submission);
  }
}

}  // namespace

std::optional<IntegerAverage> IntegerAverage::Of(const Request& request) {
  if (!IsIntegerAverage(request.op, request.reduce_op, request.dtype)) return std::nullopt;
  return IntegerAverage{.dtype = ToScalarType(request.dtype),
                        .prescale = request.prescale,
                        .postscale = request.postscale};
}

at::Tensor IntegerAverage::Carry(const at::Tensor& tensor) const {
  const Unrecorded unrecorded;
  at::Tensor numbers = tensor;
  if (prescale != 1.0) numbers = Truncated(tensor.to(at::kDouble) * prescale, dtype);
  if (dtype == at::kLong) return Halves(numbers);
  return numbers.is_same(tensor) ? tensor.to(at::kLong) : numbers;
}

void IntegerAverage::Finish(const at::Tensor& sum, int64_t divisor,
                            const at::Tensor& target) const {
  const Unrecorded unrecorded;
  const bool has_halves = dtype == at::kLong;
  const at::Tensor upper = has_halves ? sum.select(-1, 0) : sum;
  const at::Tensor lower = has_halves ? sum.select(-1, 1) : at::Tensor();
  if (postscale != 1.0) {
    at::Tensor total = upper.to(at::kDouble);
    if (has_halves) total = total * kUpperUnit + lower.to(at::kDouble);
    target.copy_(Truncated(total * postscale / static_cast<double>(divisor), dtype));
  } else {
    target.copy_(has_halves ? Divided(upper, lower, divisor) : sum.div_(divisor, "trunc"));
  }
}

at::Tensor IntegerAverage::Finish(const at::Tensor& sum, int64_t divisor) const {
  const at::IntArrayRef sizes =
      dtype == at::kLong ? sum.sizes().slice(0, sum.dim() - 1) : sum.sizes();
  const at::Tensor result = EmptyOn(sum.device(), sizes, dtype);
  Finish(sum, divisor, result);
  return result;
}

ProcessSet SetOf(ProcessSetId id) {
  return ValueOrThrow(ValueOrThrow(process::CurrentJob())->engine().GetProcessSet(id));
}

OutputAllocator AllocatorOf(std::shared_ptr<LateOutputs> late, size_t index, LateTraits traits) {
  return [late = std::move(late), index,
          traits = std::move(traits)](const Shape& shape) -> Result<void*> {
    const auto make = [&](const Shape& made) {
      return EmptyForResult(traits.device, made, traits.dtype, traits.order);
    };
    const int64_t numbers = traits.numbers_per_element;
    const at::Tensor& given = traits.given;
    if (given.defined() && numbers == 1 && shape.ElementCount().value_or(-1) == given.numel()) {
      late->tensors[index] = given;
      return given.mutable_data_ptr();
    }
    MYDIST_ASSIGN_OR_RETURN(late->tensors[index],
                            numbers == 1 ? make(shape) : make(WithLastDim(shape, numbers)));
    return late->tensors[index].mutable_data_ptr();
  };
}

InFlight& InFlight::Instance() {
  // Leaked: tensors must not be released while the interpreter is being taken down.
  static InFlight* const instance = new InFlight;
  return *instance;
}

Handle InFlight::Submit(std::vector<Submission> submissions, InFlightCall call, Pace pace) {
  ForgetAbandoned();
  for (const at::Tensor& tensor : call.memory) call.storages.push_back(tensor.storage());
  call.pinned = Pinned(call.storages);
  ThrowIfError(MarkReady(submissions));
  for (const Submission& submission : submissions) {
    if (submission.order != nullptr) call.orders.push_back(submission.order);
  }
  const auto job = ValueOrThrow(process::CurrentJob());
  if (job->engine().config().check_finite) NoteValues(submissions);
  return Keep(ValueOrThrow(job->engine().Submit(std::move(submissions), pace)), std::move(call));
}

Handle InFlight::Keep(Handle handle, InFlightCall call) {
  MutexLock lock(mutex_);
  calls_.emplace(handle, std::move(call));
  return handle;
}

void InFlight::Require(Handle handle) {
  MutexLock lock(mutex_);
  if (!calls_.contains(handle)) throw StatusError(UnknownHandle(handle));
}

void InFlight::CheckMayFollow(Handle handle) {
  MutexLock lock(mutex_);
  const auto found = calls_.find(handle);
  if (found != calls_.end()) ThrowIfError(CheckMayWait(found->second.orders));
}

InFlightCall InFlight::Take(Handle handle) {
  MutexLock lock(mutex_);
  auto known = calls_.extract(handle);
  if (known.empty()) throw StatusError(UnknownHandle(handle));
  return std::move(known.mapped());
}

bool InFlight::Poll(Handle handle) {
  Require(handle);
  const bool is_complete = ValueOrThrow(process::Poll(handle));
  MutexLock lock(mutex_);
  if (const auto call = calls_.find(handle); is_complete && call != calls_.end()) {
    call->second.is_known_complete = true;
  }
  return is_complete;
}

std::vector<at::Tensor> InFlight::Wait(Handle handle) {
  Require(handle);
  CheckMayFollow(handle);
  std::optional<Status> status;
  {
    const WithoutGil released;
    status = Await(handle);
  }
  if (!status) throw StatusError(NotOurs(handle));
  InFlightCall call = Take(handle);
  const Status followed = Follow(call);
  if (!status->ok()) KeepFromLateWrites(std::make_shared<InFlightCall>(call));
  RaiseIfError(*status);
  RaiseIfError(followed);
  ThrowIfError(CheckNotWritten(call));
  const at::NoGradGuard no_grad;
  for (const WriteBack& write_back : call.write_backs) write_back.target.copy_(write_back.source);
  for (const EarlyAverage& early : call.averages) {
    early.average.Finish(early.sum, early.divisor, early.target);
  }
  if (call.late != nullptr) {
    const size_t first_late = call.outputs.size();
    // Moved out, not copied: whatever the engine still has of `late` is empty from here on.
    for (at::Tensor& tensor : call.late->tensors) call.outputs.push_back(std::move(tensor));
    for (const LateAverage& late : call.late->averages) {
      at::Tensor& output = call.outputs[first_late + late.index];
      output = late.average.Finish(output, late.divisor);
    }
    if (call.gives_numbers) call.outputs.push_back(ToTensor(call.late->numbers));
  }
  return std::move(call.outputs);
}

std::vector<at::Tensor> InFlight::Fetch(Handle handle) {
  try {
    return Wait(handle);
  } catch (...) {
    Abandon(handle);
    throw;
  }
}

void InFlight::WaitAll(std::span<const Handle> handles, std::vector<Status>& outcomes) {
  for (const Handle handle : handles) CheckMayFollow(handle);
  try {
    const WithoutGil released;
    for (const Handle handle : handles) {
      std::optional<Status> status = Await(handle);
      outcomes.push_back(status ? std::move(*status) : NotOurs(handle));
    }
  } catch (...) {
    static_cast<void>(Drop(handles.first(outcomes.size()), AnyFailed(outcomes)));
    throw;
  }
  const Status followed = Drop(handles, AnyFailed(outcomes));
  if (followed.ok()) return;
  for (Status& outcome : outcomes) {
    if (outcome.ok()) outcome = followed;
  }
}

Status InFlight::Drop(std::span<const Handle> handles, bool has_failed) {
  // Released after the lock: a tensor may call back into Python.
  const auto dropped = std::make_shared<std::vector<InFlightCall>>();
  {
    MutexLock lock(mutex_);
    for (const Handle handle : handles) {
      if (auto known = calls_.extract(handle)) dropped->push_back(std::move(known.mapped()));
    }
  }
  if (has_failed) KeepFromLateWrites(dropped);
  Status first;
  for (const InFlightCall& call : *dropped) {
    if (const Status followed = Follow(call); first.ok()) first = followed;
  }
  return first;
}

std::shared_ptr<void> InFlight::Hold() {
  auto calls = std::make_shared<std::vector<InFlightCall>>();
  MutexLock lock(mutex_);
  for (const auto& [handle, call] : calls_) calls->push_back(call);
  return calls;
}

std::shared_ptr<void> HoldTensorsInFlight() { return InFlight::Instance().Hold(); }

void InFlight::Abandon(Handle handle) {
  MutexLock lock(mutex_);
  if (!calls_.contains(handle)) return;
  abandoned_.push_back(handle);
  // No caller is going to wait, and a held-back call would keep its name in use.
  static_cast<void>(process::Poll(handle));
}

void InFlight::ForgetAbandoned() {
  std::vector<Handle> complete;
  {
    MutexLock lock(mutex_);
    std::erase_if(abandoned_, [&complete](Handle handle) {
      const Result<bool> polled = process::Poll(handle);
      if (polled.ok() && !*polled) return false;
      process::Release(handle);
      complete.push_back(handle);
      return true;
    });
  }
  if (!complete.empty()) static_cast<void>(Drop(complete, true));
}

}  // namespace mydist
