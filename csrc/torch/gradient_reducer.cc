#include "torch/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <utility>

#include "runtime/process.h"
#include "torch/bindings.h"
#include "torch/error_translation.h"
#include "torch/gradient_errors.h"
#include "torch/gradients_in_flight.h"
#include "torch/in_flight.h"
#include "torch/tensor_adapter.h"

namespace mydist {
namespace {

// What torch calls. It holds the reducer weakly: the parameter owns the hook and the reducer owns
// the parameter, and the circle must not keep both alive.
class GradientHook {
 public:
  GradientHook(std::weak_ptr<GradientReducer> reducer, size_t index)
      : reducer_(std::move(reducer)), index_(index) {}

  void operator()(const py::handle& /*parameter*/) const {
    if (const auto reducer = reducer_.lock()) reducer->OnGradient(index_);
  }

 private:
  std::weak_ptr<GradientReducer> reducer_;
  size_t index_;
};

int64_t VersionOf(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

// Gradients can be views of one tensor (autograd's of a cat or stack, or a flat buffer of the
// user's): then they share its version, which any of them advances.
bool HasMemoryOfItsOwn(const at::Tensor& tensor) {
  return tensor.storage().nbytes() <= static_cast<size_t>(tensor.nbytes());
}

}  // namespace

GradientReducer::~GradientReducer() { Remove(); }

void GradientReducer::AddParameter(const at::Tensor& tensor, const std::string& name,
                                   const std::string& group, int32_t group_size) {
  ThrowIfError(CheckName(name, "parameter"));
  for (const Parameter& known : parameters_) {
    if (known.tensor.is_same(tensor)) return;
    if (known.name != name) continue;
    throw StatusError(Status::InvalidArgument("two parameters are named '" + name +
                                              "'. Pass named_parameters with unique names."));
  }
  const std::string what = "parameter '" + name + "'";
  const DataType dtype = ValueOrThrow(CheckReadable(tensor, what));
  ThrowIfError(CheckReduction(options_.reduction, dtype, what));
  if (!tensor.is_leaf()) {
    throw StatusError(Status::InvalidArgument(
        what +
        " is not a leaf tensor, so it gets no gradient of its own. Pass the tensor it was "
        "computed from, or detach() it."));
  }
  Parameter parameter;
  parameter.tensor = tensor;
  parameter.name = name;
  parameter.group = group;
  parameter.group_size = group.empty() ? 0 : group_size;
  if (IsFloatingPoint(dtype) || IsComplex(dtype)) {
    const py::object hook = py::cast(GradientHook(weak_from_this(), parameters_.size()));
    // torch registers hooks only on what requires a gradient; frozen parameters may be unfrozen.
    const bool frozen = !tensor.requires_grad();
    if (frozen) tensor.set_requires_grad(true);
    parameter.hook_handle = py::cast(tensor).attr("register_post_accumulate_grad_hook")(hook);
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
  ThrowIfError(Enqueue(parameter));
}

at::ScalarType GradientReducer::WireDtype(at::ScalarType dtype) const {
  if (options_.wire_format == WireFormat::kAsIs) return dtype;
  if (dtype != at::kFloat && dtype != at::kDouble) return dtype;
  return options_.wire_format == WireFormat::kFloat16 ? at::kHalf : at::kBFloat16;
}

Status GradientReducer::MakeZeros(const Parameter& parameter, InFlightGradient& gradient) const {
  const at::ScalarType dtype = WireDtype(parameter.tensor.scalar_type());
  if (parameter.sparse_dims > 0) {
    gradient.sparse.emplace(parameter.tensor.sizes(), parameter.sparse_dims, dtype);
  } else {
    gradient.wire = at::zeros(parameter.tensor.sizes(), dtype);
  }
  return Status::Ok();
}

Status GradientReducer::CheckSparse(const Parameter& parameter) const {
  const auto refuse = [&parameter](const std::string& why) {
    return Status::InvalidArgument(GradientOf(parameter.name) + " is sparse, " + why +
                                   " Create the layer with sparse=False, or pass "
                                   "sparse_as_dense=True to DistributedOptimizer.");
  };
  const ReduceOp op = options_.reduction.op;
  if (parameter.tensor.grad().layout() != at::kSparse) return refuse("but not a COO tensor.");
  if (!parameter.group.empty()) {
    return refuse("but in a group, which is reduced as one dense piece; leave it out of `groups`.");
  }
  if (op != ReduceOp::kAverage && op != ReduceOp::kSum) {
    return refuse("which op " + std::string(ReduceOpName(op)) +
                  " cannot reduce: rows that a rank has not touched are zero only for Average and "
                  "Sum.");
  }
  return Status::Ok();
}

Status GradientReducer::MakeSparse(Parameter& parameter, InFlightGradient& gradient) const {
  MYDIST_RETURN_IF_ERROR(CheckSparse(parameter));
  gradient.gradient = parameter.tensor.grad();
  gradient.version = VersionOf(gradient.gradient);
  gradient.sparse.emplace(gradient.gradient, WireDtype(gradient.gradient.scalar_type()));
  parameter.sparse_dims = gradient.gradient.sparse_dim();
  return CheckReadable(gradient.sparse->values(), GradientOf(parameter.name)).status();
}

Status GradientReducer::MakeWire(Parameter& parameter, InFlightGradient& gradient) const {
  const at::NoGradGuard no_grad;
  if (!parameter.tensor.grad().defined()) return MakeZeros(parameter, gradient);
  if (parameter.tensor.grad().layout() != at::kStrided) {
    if (!sparse_as_dense_) return MakeSparse(parameter, gradient);
    parameter.tensor.mutable_grad() = parameter.tensor.grad().to_dense();
  }
  parameter.sparse_dims = 0;
  gradient.gradient = parameter.tensor.grad();
  const std::string what = GradientOf(parameter.name);
  MYDIST_RETURN_IF_ERROR(CheckReadable(gradient.gradient, what).status());
  MYDIST_RETURN_IF_ERROR(CheckWritable(gradient.gradient, what));
  if (HasMemoryOfItsOwn(gradient.gradient)) gradient.version = VersionOf(gradient.gradient);
  gradient.data = gradient.gradient.const_data_ptr();
  gradient.wire = Dense(gradient.gradient.to(WireDtype(gradient.gradient.scalar_type())));
  return Status::Ok();
}

Submission GradientReducer::DenseSubmission(const Parameter& parameter,
                                            const at::Tensor& wire) const {
  const std::optional<DataType> dtype = ToDataType(wire.scalar_type());
  MYDIST_CHECK(dtype.has_value());
  Submission submission;
  Request& request = submission.request;
  request.name = parameter.name;
  request.op = OpKind::kAllreduce;
  request.dtype = *dtype;
  request.shape = ShapeOf(wire);
  request.reduce_op = options_.reduction.op;
  request.prescale = options_.reduction.prescale;
  request.postscale = options_.reduction.postscale;
  request.process_set = options_.process_set;
  request.group = parameter.group;
  request.group_size = parameter.group_size;
  submission.output = wire.mutable_data_ptr();
  submission.input = submission.output;
  return submission;
}

Status GradientReducer::Submit(const Parameter& parameter, InFlightGradient& gradient) const {
  std::vector<Submission> submissions;
  InFlightCall call;
  if (gradient.sparse) {
    Request request;
    request.name = parameter.name;
    request.process_set = options_.process_set;
    submissions = gradient.sparse->Submissions(request);
    call.memory = gradient.sparse->memory();
  } else {
    submissions.push_back(DenseSubmission(parameter, gradient.wire));
    call.memory.push_back(gradient.wire);
  }
  try {
    gradient.handle =
        InFlight::Instance().Submit(std::move(submissions), std::move(call), Pace::kWithMore);
  } catch (const StatusError& error) {
    return error.status();
  }
  return Status::Ok();
}

Status GradientReducer::Enqueue(Parameter& parameter) {
  GradientsInFlight& others = GradientsInFlight::Instance();
  MYDIST_RETURN_IF_ERROR(others.Check(parameter.tensor, parameter.name, options_.process_set));
  InFlightGradient gradient{};
  MYDIST_RETURN_IF_ERROR(MakeWire(parameter, gradient));
  MYDIST_RETURN_IF_ERROR(Submit(parameter, gradient));
  parameter.in_flight = std::move(gradient);
  others.Add(parameter.tensor, parameter.name, options_.process_set);
  return Status::Ok();
}

void GradientReducer::Land(Parameter& parameter) {
  GradientsInFlight::Instance().Remove(parameter.tensor);
  parameter.in_flight.reset();
}

Status GradientReducer::EnqueueMissing(bool alone) {
  Status first;
  for (Parameter& parameter : parameters_) {
    if (parameter.in_flight) continue;
    // Alone there is nobody to agree with, and a parameter without gradient stays without.
    const bool has_gradient = parameter.tensor.grad().defined();
    const bool takes_part = parameter.tensor.requires_grad() && (has_gradient || !alone);
    if (!takes_part && parameter.group.empty()) continue;
    const Status status = Enqueue(parameter);
    if (first.ok()) first = status;
  }
  return first;
}

// The gradient's own memory stays where it is; a sparse one is another tensor afterwards.
void GradientReducer::Install(Parameter& parameter, const InFlightGradient& done,
                              bool alone) const {
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  const at::ScalarType dtype = parameter.tensor.scalar_type();
  if (!done.gradient.defined() && (alone || !parameter.tensor.requires_grad())) return;
  if (done.sparse) {
    gradient = done.sparse->Sum(dtype, sparse_factor_);
  } else if (!done.gradient.defined()) {
    gradient = done.wire.to(dtype);
  } else if (!done.wire.is_same(done.gradient)) {
    done.gradient.copy_(done.wire);
  }
}

Status GradientReducer::Finish(Parameter& parameter, const Status& outcome, bool alone) {
  const at::NoGradGuard no_grad;
  const InFlightGradient done = std::move(*parameter.in_flight);
  Land(parameter);
  parameter.backward_passes = 0;
  if (outcome.code() == StatusCode::kMismatch && (done.sparse || !done.gradient.defined())) {
    return WithSparseHint(outcome);
  }
  MYDIST_RETURN_IF_ERROR(outcome);
  const at::Tensor& now = parameter.tensor.grad();
  if (!done.gradient.defined()) {
    if (now.defined()) return GradientReplaced(parameter.name);
  } else {
    if (!now.is_same(done.gradient)) return GradientReplaced(parameter.name);
    if (!done.sparse && now.const_data_ptr() != done.data) return GradientReplaced(parameter.name);
    const bool changed = done.version && VersionOf(now) != *done.version;
    if (changed) return GradientChanged(parameter.name);
  }
  Install(parameter, done, alone);
  return Status::Ok();
}

std::vector<GradientReducer::Flight> GradientReducer::Flights() {
  std::vector<Flight> flights;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].backward_passes = 0;
    if (parameters_[i].in_flight) flights.push_back({i, parameters_[i].in_flight->handle});
  }
  return flights;
}

// The wait gave up the GIL, so another thread may have removed or finished the gradient.
Status GradientReducer::FinishFlight(const Flight& flight, const Status& outcome, bool alone) {
  if (flight.index >= parameters_.size()) return LostWhileWaiting();
  Parameter& parameter = parameters_[flight.index];
  if (!parameter.in_flight || parameter.in_flight->handle != flight.handle) {
    return LostWhileWaiting();
  }
  return Finish(parameter, outcome, alone);
}

void GradientReducer::Synchronize() {
  const int set_size = ValueOrThrow(process::GetProcessSet(options_.process_set)).size();
  const bool alone = set_size == 1;
  const bool averages = options_.reduction.op == ReduceOp::kAverage;
  sparse_factor_ =
      options_.reduction.prescale * options_.reduction.postscale / (averages ? set_size : 1);
  Status first = EnqueueMissing(alone);
  const std::vector<Flight> flights = Flights();
  std::vector<Handle> handles;
  for (const Flight& flight : flights) handles.push_back(flight.handle);
  std::vector<Status> outcomes;
  std::exception_ptr interrupted;
  try {
    InFlight::Instance().WaitAll(handles, outcomes);
  } catch (...) {
    interrupted = std::current_exception();
  }
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Status status = FinishFlight(flights[i], outcomes[i], alone);
    // What the peers see as well says more than what only this rank did wrong.
    const bool outranks = first.code() == StatusCode::kInvalidArgument && !outcomes[i].ok();
    if (first.ok() || outranks) first = status;
  }
  if (interrupted) std::rethrow_exception(interrupted);
  touched_ = false;
  ThrowIfError(first);
}

void GradientReducer::SetBackwardPassesPerStep(int64_t passes) {
  if (passes < 1) {
    throw StatusError(Status::InvalidArgument("backward_passes_per_step is " +
                                              std::to_string(passes) + ", expected at least 1"));
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

void GradientReducer::Reset() {
  for (Parameter& parameter : parameters_) parameter.backward_passes = 0;
}

void GradientReducer::Remove() {
  for (Parameter& parameter : parameters_) {
    if (parameter.in_flight) {
      InFlight::Instance().Abandon(parameter.in_flight->handle);
      Land(parameter);
    }
    RemoveHook(parameter);
  }
  parameters_.clear();
}

// Also called by the destructor, which must not throw.
void GradientReducer::RemoveHook(Parameter& parameter) noexcept {
  if (!parameter.hook_handle) return;
  try {
    parameter.hook_handle.attr("remove")();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("removing a gradient hook");
  }
}

namespace {

std::shared_ptr<GradientReducer> MakeReducer(int reduce_op, double prescale, double postscale,
                                             int compression, int64_t passes, int process_set) {
  const auto refuse = [](const std::string& message) {
    throw StatusError(Status::InvalidArgument(message));
  };
  if (reduce_op < 0 || reduce_op >= kReduceOpCount) {
    refuse("op " + std::to_string(reduce_op) +
           " is unknown, expected Average, Sum, Min, Max or Product");
  }
  if (compression < 0 || compression > 2) {
    refuse("compression " + std::to_string(compression) + " is unknown, expected 0, 1 or 2");
  }
  ThrowIfError(process::GetProcessSet(process_set).status());
  GradientReducerOptions options;
  options.reduction = {static_cast<ReduceOp>(reduce_op), prescale, postscale};
  options.wire_format = static_cast<WireFormat>(compression);
  options.process_set = process_set;
  auto reducer = std::make_shared<GradientReducer>(options);
  reducer->SetBackwardPassesPerStep(passes);
  return reducer;
}

}  // namespace

void BindGradientReducer(py::module_& module) {
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
      .def("pending", &GradientReducer::Pending)
      .def("touched", &GradientReducer::touched)
      .def("reset", &GradientReducer::Reset)
      .def("remove", &GradientReducer::Remove);
}

}  // namespace mydist
