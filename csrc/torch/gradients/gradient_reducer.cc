#include "torch/gradients/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <tuple>

#include "job/job.h"
#include "torch/bindings.h"
#include "torch/collective_call.h"
#include "torch/error_translation.h"
#include "torch/gpu_order.h"
#include "torch/tensor_adapter.h"

namespace mydist {

// torch's handle of a registered hook. Made, used and destroyed with the GIL held.
struct __attribute__((visibility("hidden"))) HookHandle {
  pybind11::object handle;
};

namespace {

// GradientHook: what torch calls when the gradient of a parameter has been accumulated.
// Owned by the parameter, called by autograd with the GIL held. It holds the reducer weakly: the
// parameter owns the hook and the reducer owns the parameter, and the circle must not keep both
// alive.
class GradientHook {
 public:
  GradientHook(std::weak_ptr<GradientReducer> reducer, size_t index)
      : reducer_(std::move(reducer)), index_(index) {}

  void operator()(const pybind11::handle& /*parameter*/) const {
    if (const auto reducer = reducer_.lock()) reducer->OnGradient(index_);
  }

 private:
  std::weak_ptr<GradientReducer> reducer_;
  size_t index_;
};

std::shared_ptr<GradientReducer> MakeReducer(int reduce_op, double prescale, double postscale,
                                             int compression, int64_t passes, int process_set) {
  const GradientReducerOptions options{
      .reduction = {ToReduceOp(OpKind::kAllreduce, reduce_op), prescale, postscale},
      .wire_format = ToWireFormat(compression),
      .process_set = SetOf(process_set).id};
  auto reducer = std::make_shared<GradientReducer>(options);
  reducer->SetBackwardPassesPerStep(passes);
  return reducer;
}

Status TooManyBackwards(const std::string& name, int64_t passes) {
  return Status::InvalidArgument(
      "Gradient of '" + name + "' was computed more than backward_passes_per_step (" +
      std::to_string(passes) +
      ") times since the last step. Call optimizer.step() or synchronize() before the next "
      "backward, raise backward_passes_per_step, or run the extra backward in "
      "optimizer.no_sync().");
}

// Another thread has taken the gradients from the one that waits for them.
Status LostWhileWaiting() {
  return Status::InvalidArgument(
      "another thread took the gradients while synchronize() waited for them: it synchronized the "
      "optimizer, wrapped it again or deleted it. Use an optimizer from one "
      "thread at a time.");
}

// A mismatch that may come from a gradient being sparse on some ranks only; its code stays.
Status WithSparseHint(const Status& mismatch) {
  const std::string hint =
      "Is the gradient sparse on some ranks only? A rank without a gradient so far contributes "
      "dense zeros. Use the layer on every rank in the first step, or pass sparse_as_dense=True to "
      "DistributedOptimizer.";
  return Status(mismatch.code(), mismatch.message() + "\n" + hint)
      .About({.hint = hint})
      .About(mismatch.failure());
}

bool IsAbout(const Status& status, const std::string& name) {
  return !status.ok() && status.failure().tensor == name;
}

}  // namespace

GradientReducer::~GradientReducer() { Remove(); }

void GradientReducer::AddParameter(const at::Tensor& tensor, const std::string& name,
                                   const std::string& group, int32_t group_size) {
  ThrowIfError(CheckName(name, "parameter"));
  for (const Parameter& known : parameters_) {
    if (known.tensor.is_same(tensor)) return;
    if (known.name != name) continue;
    CollectiveCall::Refuse("two parameters are named '" + name +
                           "'. Pass named_parameters with unique names.");
  }
  const std::string what = "parameter '" + name + "'";
  const DataType dtype = ValueOrThrow(CheckReadable(tensor, what));
  ThrowIfError(CheckReduction(options_.reduction, dtype, what));
  if (!tensor.is_leaf()) {
    CollectiveCall::Refuse(what +
                           " is not a leaf tensor, so autograd gives it no gradient. Pass the "
                           "tensor it was computed from, or detach() it.");
  }
  Parameter parameter;
  parameter.tensor = tensor;
  parameter.name = name;
  parameter.group = group;
  parameter.group_size = static_cast<size_t>(group_size);
  if (IsFloatingPoint(dtype) || IsComplex(dtype)) {
    const py::object hook = py::cast(GradientHook(weak_from_this(), parameters_.size()));
    // torch registers hooks only on what requires a gradient; frozen parameters may be unfrozen.
    const bool frozen = !tensor.requires_grad();
    if (frozen) tensor.set_requires_grad(true);
    parameter.hook = std::make_shared<HookHandle>(
        HookHandle{py::cast(tensor).attr("register_post_accumulate_grad_hook")(hook)});
    if (frozen) tensor.set_requires_grad(false);
  }
  parameters_.push_back(std::move(parameter));
}

void GradientReducer::OnGradient(size_t index) {
  if (index >= parameters_.size()) return;  // Removed while backward was running.
  touched_ = true;
  Parameter& parameter = parameters_[index];
  if (parameter.in_flight) {
    throw StatusError(TooManyBackwards(parameter.name, backward_passes_per_step_));
  }
  if (!enabled_) return;
  ++parameter.backward_passes;
  if (parameter.backward_passes < backward_passes_per_step_) return;
  ThrowIfError(Hold(parameter, true));
  // In the first step Synchronize finds out what belongs together.
  if (!parameter.is_laid_out) return;
  std::optional<size_t> due;
  if (buckets_.Has(index)) {
    due = buckets_.Ready(index, [this](size_t member) { return IsExpected(member); });
    if (!due) return;
  }
  const std::span<const size_t> members = due ? buckets_.Members(*due) : std::span(&index, 1);
  // The last gradient need not wake the engine: the step is about to wait.
  const bool more_to_come = due && !buckets_.AllDue();
  ThrowIfError(Enqueue(members, more_to_come ? Pace::kNow : Pace::kWithMore));
}

bool GradientReducer::IsExpected(size_t index) const {
  return parameters_[index].tensor.requires_grad() && !parameters_[index].is_idle;
}

Submission GradientReducer::DenseSubmission(const Parameter& parameter,
                                            const InFlightGradient& gradient) const {
  const at::Tensor& wire = gradient.wire;
  const std::optional<DataType> dtype = ToDataType(WireDtype(wire.scalar_type()));
  MYDIST_CHECK(dtype.has_value());
  Submission submission =
      NewSubmission({.op = OpKind::kAllreduce,
                     .group = parameter.group,
                     .process_set = options_.process_set,
                     .reduce_op = options_.reduction.op,
                     .prescale = options_.reduction.prescale,
                     .postscale = options_.reduction.postscale},
                    parameter.name, *dtype, ShapeOf(wire), wire.device(), parameter.group_size);
  submission.output = (gradient.sum.defined() ? gradient.sum : wire).mutable_data_ptr();
  submission.input = submission.output;
  submission.is_wide = gradient.is_wide;
  return submission;
}

// Frozen parameters of a group may be integers.
bool GradientReducer::AveragesIntegers(const at::Tensor& wire) const {
  return options_.reduction.op == ReduceOp::kAverage && wire.defined() &&
         c10::isIntegralType(wire.scalar_type(), false);
}

IntegerAverage GradientReducer::AverageOf(const at::Tensor& wire) const {
  return {.dtype = wire.scalar_type(),
          .prescale = options_.reduction.prescale,
          .postscale = options_.reduction.postscale};
}

void GradientReducer::AddSubmissions(const Parameter& parameter,
                                     std::vector<Submission>& submissions,
                                     InFlightCall& call) const {
  const InFlightGradient& gradient = *parameter.in_flight;
  if (!gradient.sparse) {
    submissions.push_back(DenseSubmission(parameter, gradient));
    call.memory.push_back(gradient.sum.defined() ? gradient.sum : gradient.wire);
    return;
  }
  for (Submission& part : gradient.sparse->Submissions(parameter.name, options_.process_set)) {
    submissions.push_back(std::move(part));
  }
  for (const at::Tensor& tensor : gradient.sparse->memory()) call.memory.push_back(tensor);
  call.late = gradient.sparse->late();
}

Status GradientReducer::EnqueueTogether(std::vector<size_t> members, Pace pace) {
  try {
    std::vector<Submission> submissions;
    InFlightCall call;
    ReadyEvents events;
    for (const size_t index : members) {
      const Parameter& parameter = parameters_[index];
      const size_t first = submissions.size();
      AddSubmissions(parameter, submissions, call);
      for (size_t i = first; i < submissions.size(); ++i) {
        ThrowIfError(events.Mark(submissions[i].order, parameter.in_flight->stream));
      }
    }
    call.storages = slots_.GpuMemory();
    const Handle handle =
        InFlight::Instance().Submit(std::move(submissions), std::move(call), pace);
    for (const size_t index : members) parameters_[index].in_flight->handle = handle;
    flights_.push_back({handle, std::move(members)});
  } catch (const StatusError& error) {
    return error.status();
  }
  return Status::Ok();
}

Status GradientReducer::Enqueue(std::span<const size_t> members, Pace pace) {
  std::vector<std::vector<size_t>> flights(1);
  for (const size_t index : members) {
    const std::optional<InFlightGradient>& gradient = parameters_[index].in_flight;
    if (!gradient || gradient->handle) continue;
    if (gradient->sparse) {
      flights.push_back({index});
    } else {
      flights.front().push_back(index);
    }
  }
  if (flights.front().empty()) flights.erase(flights.begin());
  Status first;
  // Grows: when one gradient is refused the others go alone, or other ranks would miss them, too.
  for (size_t i = 0; i < flights.size(); ++i) {
    Status status = EnqueueTogether(flights[i], pace);
    if (status.ok()) continue;
    if (flights[i].size() == 1) {
      Land(parameters_[flights[i].front()]);
      if (first.ok()) first = std::move(status);
      continue;
    }
    for (const size_t index : std::vector<size_t>(flights[i])) flights.push_back({index});
  }
  return first;
}

Status GradientReducer::Hold(Parameter& parameter, bool in_backward) {
  GradientsInFlight& others = GradientsInFlight::Instance();
  MYDIST_RETURN_IF_ERROR(others.Check(parameter.tensor, parameter.name, options_.process_set));
  InFlightGradient gradient{};
  // What the user has laid there came from Python, and was added to, which shows in the version.
  const at::Tensor& tensor = parameter.tensor.grad();
  gradient.is_fresh =
      in_backward && tensor.defined() && (VersionOf(tensor) == 0 || !IsKnownToPython(tensor));
  MYDIST_RETURN_IF_ERROR(MakeWire(parameter, gradient));
  if (AveragesIntegers(gradient.wire)) gradient.sum = AverageOf(gradient.wire).Carry(gradient.wire);
  gradient.stream = StreamOf(parameter);
  parameter.in_flight = std::move(gradient);
  others.Add(parameter.tensor, parameter.name, options_.process_set);
  return Status::Ok();
}

void GradientReducer::Land(Parameter& parameter) {
  GradientsInFlight::Instance().Remove(parameter.tensor);
  parameter.in_flight.reset();
}

Status GradientReducer::HoldMissing(bool alone) {
  Status first;
  const auto counted = [](const Parameter& parameter) { return parameter.backward_passes > 0; };
  const bool any_counted = std::any_of(parameters_.begin(), parameters_.end(), counted);
  for (Parameter& parameter : parameters_) {
    if (any_counted) parameter.is_idle = !counted(parameter);
    if (parameter.in_flight) continue;
    // One rank has no peer to agree with, and a parameter without gradient stays without.
    const bool has_gradient = parameter.tensor.grad().defined();
    const bool takes_part = parameter.tensor.requires_grad() && (has_gradient || !alone);
    if (!takes_part && parameter.group.empty()) continue;
    const Status status = Hold(parameter, false);
    if (first.ok()) first = status;
  }
  return first;
}

Status GradientReducer::EnqueueHeld() {
  Status first;
  const auto enqueue = [&](std::span<const size_t> members) {
    const Status status = Enqueue(members, Pace::kWithMore);
    if (first.ok()) first = status;
  };
  for (size_t bucket = 0; bucket < buckets_.count(); ++bucket) enqueue(buckets_.Members(bucket));
  for (size_t index = 0; index < parameters_.size(); ++index) enqueue({&index, 1});
  return first;
}

Status GradientReducer::Finish(Parameter& parameter, const Status& outcome, bool alone) {
  const at::NoGradGuard no_grad;
  const InFlightGradient done = std::move(*parameter.in_flight);
  Land(parameter);
  parameter.backward_passes = 0;
  if (outcome.code() == StatusCode::kMismatch && IsAbout(outcome, parameter.name) &&
      (done.sparse || !done.gradient.defined())) {
    return WithSparseHint(outcome);
  }
  MYDIST_RETURN_IF_ERROR(outcome);
  MYDIST_RETURN_IF_ERROR(CheckUntouched(parameter, done));
  if (done.sum.defined()) {
    // Another thread may have shut down meanwhile.
    MYDIST_ASSIGN_OR_RETURN(const auto job, process::CurrentJob());
    MYDIST_ASSIGN_OR_RETURN(const auto set, job->engine().GetProcessSet(options_.process_set));
    AverageOf(done.wire).Finish(done.sum, set.size(), done.wire);
  }
  Install(parameter, done, alone);
  return Status::Ok();
}

void GradientReducer::NextStep() {
  for (Parameter& parameter : parameters_) parameter.backward_passes = 0;
  buckets_.NextStep();
}

void GradientReducer::Forget(std::span<const Flight> landed) {
  std::erase_if(flights_, [&](const Flight& flight) {
    return std::any_of(landed.begin(), landed.end(),
                       [&](const Flight& one) { return one.handle == flight.handle; });
  });
}

// The wait gave up the GIL, so another thread may have removed or finished the gradients.
Status GradientReducer::FinishFlight(const Flight& flight, const Status& outcome, bool alone) {
  Status first;
  for (const size_t index : flight.members) {
    const bool is_there = index < parameters_.size() && parameters_[index].in_flight &&
                          parameters_[index].in_flight->handle == flight.handle;
    const Status status =
        is_there ? Finish(parameters_[index], outcome, alone) : LostWhileWaiting();
    // Among members that share an error, the culprit has the most specific text.
    const bool is_culprit = is_there && IsAbout(outcome, parameters_[index].name);
    if (first.ok() || is_culprit) first = status;
  }
  return first;
}

// No hook has checked the gradients that Synchronize lays out and enqueues itself.
void GradientReducer::CheckMayEnqueue() const {
  std::set<c10::DeviceIndex> checked;
  for (const Parameter& parameter : parameters_) {
    const at::Device device = parameter.tensor.device();
    if (!device.is_cuda() || !checked.insert(device.index()).second) continue;
    ThrowIfError(CheckDevice(device, GradientOf(parameter.name)));
  }
}

void GradientReducer::Synchronize() {
  const int set_size = SetOf(options_.process_set).size();
  const bool alone = set_size == 1;
  const bool averages = options_.reduction.op == ReduceOp::kAverage;
  sparse_factor_ =
      options_.reduction.prescale * options_.reduction.postscale / (averages ? set_size : 1);
  CheckMayEnqueue();
  Status first = HoldMissing(alone);
  LayOut();
  if (const Status rest = EnqueueHeld(); first.ok()) first = rest;
  NextStep();
  const std::vector<Flight> flights = flights_;
  std::vector<Handle> handles;
  for (const Flight& flight : flights) handles.push_back(flight.handle);
  std::vector<Status> outcomes;
  std::exception_ptr interrupted;
  try {
    InFlight::Instance().WaitAll(handles, outcomes);
  } catch (...) {
    interrupted = std::current_exception();
  }
  Forget(std::span(flights).first(outcomes.size()));
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Status status = FinishFlight(flights[i], outcomes[i], alone);
    // An error that the peers see as well is more specific than an error of this rank only.
    const bool outranks = first.code() == StatusCode::kInvalidArgument && !outcomes[i].ok();
    if (first.ok() || outranks) first = status;
  }
  if (interrupted) std::rethrow_exception(interrupted);
  touched_ = false;
  RaiseIfError(first);
}

void GradientReducer::SetBackwardPassesPerStep(int64_t passes) {
  if (passes < 1) {
    CollectiveCall::Refuse("backward_passes_per_step is " + std::to_string(passes) +
                           ", expected at least 1");
  }
  backward_passes_per_step_ = passes;
}

std::vector<std::string> GradientReducer::Pending() const {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters_) {
    if (parameter.in_flight) names.push_back(parameter.name);
  }
  return names;
}

std::vector<std::vector<std::string>> GradientReducer::Buckets() const {
  std::vector<std::vector<std::string>> buckets;
  for (size_t bucket = 0; bucket < buckets_.count(); ++bucket) {
    std::vector<std::string>& names = buckets.emplace_back();
    for (const size_t index : buckets_.Members(bucket)) names.push_back(parameters_[index].name);
  }
  return buckets;
}

void GradientReducer::Reset() {
  for (Parameter& parameter : parameters_) parameter.backward_passes = 0;
}

void GradientReducer::LetGo() {
  for (Parameter& parameter : parameters_) {
    if (parameter.in_flight && !parameter.is_laid_out) Land(parameter);
  }
}

void GradientReducer::Remove() {
  // Other ranks may have enqueued it already, and would never get rid of it.
  static_cast<void>(EnqueueHeld());
  for (Parameter& parameter : parameters_) {
    if (parameter.in_flight) {
      if (parameter.in_flight->handle) InFlight::Instance().Abandon(*parameter.in_flight->handle);
      Land(parameter);
    }
    RemoveHook(parameter);
  }
  parameters_.clear();
  buckets_.Clear();
  layouts_.clear();
  slots_ = GradientSlots();
  flights_.clear();
}

// Also called by the destructor, which must not throw.
void GradientReducer::RemoveHook(Parameter& parameter) noexcept {
  if (parameter.hook == nullptr) return;
  try {
    parameter.hook->handle.attr("remove")();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("removing a gradient hook");
  }
}

void BindGradientReducer(py::module_& module) {
  module.def("empty_in_reach", &EmptyInReach, py::arg("bytes"));
  py::class_<GradientHook>(module, "GradientHook").def("__call__", &GradientHook::operator());
  py::class_<GradientReducer, std::shared_ptr<GradientReducer>>(module, "GradientReducer")
      .def(py::init(&MakeReducer), py::arg("reduce_op"), py::arg("prescale_factor"),
           py::arg("postscale_factor"), py::arg("compression"), py::arg("backward_passes_per_step"),
           py::arg("process_set"))
      .def("add_parameter", &GradientReducer::AddParameter, py::arg("parameter"), py::arg("name"),
           py::arg("group"), py::arg("group_size"))
      .def("synchronize", &GradientReducer::Synchronize)
      .def("set_backward_passes_per_step", &GradientReducer::SetBackwardPassesPerStep,
           py::arg("passes"))
      .def("set_enabled", &GradientReducer::SetEnabled, py::arg("enabled"))
      .def("set_sparse_as_dense", &GradientReducer::SetSparseAsDense, py::arg("sparse_as_dense"))
      .def("set_buffer_views", &GradientReducer::SetBufferViews, py::arg("buffer_views"))
      .def("buckets", &GradientReducer::Buckets)
      .def("layouts",
           [](const GradientReducer& reducer) {
             std::vector<std::tuple<size_t, int64_t, int64_t, std::string>> layouts;
             for (const GradientReducer::Layout& layout : reducer.layouts()) {
               layouts.emplace_back(layout.bucket_count, layout.sizes.first_bytes,
                                    layout.sizes.bytes, layout.reason);
             }
             return layouts;
           })
      .def("slot_bytes", &GradientReducer::slot_bytes)
      .def("copied_bytes", &GradientReducer::copied_bytes)
      .def("pending", &GradientReducer::Pending)
      .def("touched", &GradientReducer::touched)
      .def("reset", &GradientReducer::Reset)
      .def("let_go", &GradientReducer::LetGo)
      .def("remove", &GradientReducer::Remove);
}

}  // namespace mydist
