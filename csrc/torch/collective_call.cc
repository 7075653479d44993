#include "torch/collective_call.h"

#include <algorithm>
#include <utility>

#include "job/job.h"
#include "torch/error_translation.h"
#include "torch/tensor_adapter.h"

namespace mydist {
namespace {

// Whether a change of its version is one of its elements. Slices of one tensor share a version.
bool CountsOwnChanges(const at::Tensor& tensor) {
  return !tensor.is_inference() && tensor.nbytes() == tensor.storage().nbytes();
}

}  // namespace

CollectiveCall::CollectiveCall(CallTraits traits, size_t tensor_count)
    : traits_(std::move(traits)), count_(tensor_count) {
  if (count_ == 0) {
    Refuse(std::string(OpKindName(traits_.op)) +
           ": got an empty list of tensors, expected at least one");
  }
  submissions_.reserve(count_);
  call_.memory.reserve(count_);
  call_.outputs.reserve(count_);
}

void CollectiveCall::Refuse(std::string message) {
  throw StatusError(Status::InvalidArgument(std::move(message)));
}

const std::string& CollectiveCall::What(const std::string& name) {
  what_.assign(OpKindName(traits_.op));
  ThrowIfError(CheckName(name, what_));
  return what_.append(" of '").append(name).append("'");
}

const ProcessSet& CollectiveCall::Members() {
  if (!members_) members_ = SetOf(traits_.process_set);
  return *members_;
}

void CollectiveCall::RequireMember(const Place& place, const std::string& name) {
  const ProcessSet& set = Members();
  if (set.IndexOf(place.rank)) return;
  const std::string got =
      What(name) + ": " + place.argument + " " + std::to_string(place.rank) + " is not ";
  if (set.id != kGlobalProcessSet) {
    Refuse(got + "in " + set.ToString() + ". Pass the global rank of a member.");
  }
  Refuse(got + "a rank of this job of size " + std::to_string(set.size()) + ", expected 0 to " +
         std::to_string(set.size() - 1));
}

Submission NewSubmission(const CallTraits& traits, const std::string& name, DataType dtype,
                         const Shape& shape, const at::Device& device, size_t group_size) {
  Submission submission;
  submission.order = NewOrder(device);
  Request& request = submission.request;
  request.name = name;
  request.op = traits.op;
  request.dtype = dtype;
  request.shape = shape;
  request.device = DeviceNumber(device);
  request.reduce_op = traits.reduce_op;
  request.root_rank = traits.root_rank;
  request.prescale = traits.prescale;
  request.postscale = traits.postscale;
  request.process_set = traits.process_set;
  request.group = traits.group;
  request.group_size = traits.group.empty() ? 0 : static_cast<int32_t>(group_size);
  return submission;
}

Submission& CollectiveCall::Add(const std::string& name, DataType dtype, const Shape& shape,
                                const at::Device& device) {
  submissions_.push_back(NewSubmission(traits_, name, dtype, shape, device, count_));
  return submissions_.back();
}

Submission& CollectiveCall::AddShape(const at::Tensor& tensor, const std::string& name) {
  const DataType dtype = ValueOrThrow(CheckReadable(tensor, What(name)));
  return Add(name, dtype, ShapeOf(tensor), tensor.device());
}

Submission& CollectiveCall::AddSignal(const std::string& name) {
  What(name);
  return Add(name, DataType::kFloat32, Shape({0}), at::kCPU);
}

Submission& CollectiveCall::AddInput(const at::Tensor& tensor, const std::string& name) {
  Submission& submission = AddShape(tensor, name);
  DataType& dtype = submission.request.dtype;
  const DataType given = std::exchange(dtype, NarrowTypeOf(traits_.wire_format, dtype));
  submission.is_wide = given != dtype;
  if (Reduces(traits_.op)) {
    ThrowIfError(CheckReduction({traits_.reduce_op, traits_.prescale, traits_.postscale}, dtype,
                                What(name)));
  }
  at::Tensor input = Dense(tensor);
  if (const auto average = IntegerAverage::Of(submission.request)) input = average->Carry(input);
  submission.input = input.const_data_ptr();
  if (CountsOwnChanges(input)) call_.inputs.push_back({traits_.op, name, input});
  call_.memory.push_back(std::move(input));
  return submission;
}

Submission& CollectiveCall::AddOutput(const at::Tensor& tensor, const std::string& name) {
  Submission& submission = AddShape(tensor, name);
  ThrowIfError(CheckWritable(tensor, What(name)));
  WriteTo(submission, tensor, Dense(tensor));
  return submission;
}

Submission& CollectiveCall::AddInputAndOutput(const at::Tensor& input, const at::Tensor* output,
                                              const std::string& name) {
  Submission& submission = AddInput(input, name);
  if (output != nullptr) CheckOutput(input, *output, name);
  if (const auto average = IntegerAverage::Of(submission.request)) {
    AverageTo(submission, *average,
              output ? *output : EmptyOn(input.device(), input.sizes(), input.scalar_type()));
    return submission;
  }
  if (output == nullptr) {
    call_.outputs.push_back(EmptyOn(input.device(), input.sizes(), input.scalar_type()));
    submission.output = call_.outputs.back().mutable_data_ptr();
    return submission;
  }
  const bool in_place = output->is_same(input);
  if (in_place && !call_.inputs.empty()) call_.inputs.pop_back();
  WriteTo(submission, *output, in_place ? call_.memory.back() : Dense(*output));
  if (in_place) submission.input = submission.output;
  return submission;
}

// Saved-for-backward checks of autograd must see that the values change.
void CollectiveCall::NoteWrite(const at::Tensor& output) {
  if (!output.is_inference()) output.unsafeGetTensorImpl()->bump_version();
}

// The sum stays where its input is.
void CollectiveCall::AverageTo(Submission& submission, const IntegerAverage& average,
                               const at::Tensor& output) {
  const at::Tensor& sum = call_.memory.back();
  submission.output = sum.mutable_data_ptr();
  submission.input = submission.output;
  NoteWrite(output);
  call_.averages.push_back({average, sum, output, Size()});
  call_.outputs.push_back(output);
}

void CollectiveCall::WriteTo(Submission& submission, const at::Tensor& output, at::Tensor dense) {
  submission.output = dense.mutable_data_ptr();
  NoteWrite(output);
  if (!dense.is_same(output)) call_.write_backs.push_back({output, dense});
  call_.outputs.push_back(output);
  call_.memory.push_back(std::move(dense));
}

void CollectiveCall::CheckOutput(const at::Tensor& input, const at::Tensor& output,
                                 const std::string& name) {
  const std::string& what = What(name);
  if (!output.is_same(input)) {
    ThrowIfError(CheckReadable(output, what).status());
    if (output.device() != input.device()) {
      Refuse(what + ": the output is on " + output.device().str() + ", expected " +
             input.device().str() + " as the input");
    }
    if (output.sizes() != input.sizes() || output.scalar_type() != input.scalar_type()) {
      Refuse(what + ": the output is " + DtypeName(output.scalar_type()) + " of shape " +
             ShapeOf(output).ToString() + ", expected " + DtypeName(input.scalar_type()) +
             " of shape " + ShapeOf(input).ToString() + " as the input");
    }
  }
  ThrowIfError(CheckWritable(output, what));
}

void CollectiveCall::CheckGiven(std::span<const at::Tensor> given) {
  if (given.empty()) return;
  if (given.size() != submissions_.size()) {
    Refuse("got " + std::to_string(given.size()) + " outputs for " +
           std::to_string(submissions_.size()) + " inputs, expected one each");
  }
  for (size_t i = 0; i < given.size(); ++i) {
    const std::string& what = What(submissions_[i].request.name);
    ThrowIfError(CheckReadable(given[i], what).status());
    ThrowIfError(CheckWritable(given[i], what));
    if (!given[i].is_contiguous() || given[i].device() != DeviceOf(submissions_[i]) ||
        given[i].scalar_type() != ToScalarType(CarrierOf(submissions_[i].request).dtype)) {
      Refuse(what + ": the output is not contiguous " +
             DtypeName(ToScalarType(CarrierOf(submissions_[i].request).dtype)) +
             " where the input is");
    }
    NoteWrite(given[i]);
  }
}

void CollectiveCall::AllocateLate(std::span<const at::Tensor> given) {
  CheckGiven(given);
  late_ = std::make_shared<LateOutputs>(submissions_.size());
  for (size_t i = 0; i < submissions_.size(); ++i) {
    Submission& submission = submissions_[i];
    const Carrier carrier = CarrierOf(submission.request);
    if (const auto average = IntegerAverage::Of(submission.request)) {
      late_->averages.push_back({i, *average, Size()});
    }
    submission.allocate = AllocatorOf(late_, i,
                                      {.dtype = ToScalarType(carrier.dtype),
                                       .device = DeviceOf(submission),
                                       .order = submission.order,
                                       .numbers_per_element = carrier.count,
                                       .given = given.empty() ? at::Tensor() : given[i]});
    if (!given.empty()) call_.memory.push_back(given[i]);
  }
}

void CollectiveCall::ReceiveNumbers() {
  if (late_ == nullptr) late_ = std::make_shared<LateOutputs>(0);
  submissions_.back().on_numbers = [late = late_](const std::vector<int64_t>& numbers) {
    late->numbers = numbers;
  };
  call_.gives_numbers = true;
}

// Two tensors of a group writing to the same memory would race with each other.
void CollectiveCall::RefuseOverlappingOutputs() {
  std::vector<std::pair<const char*, size_t>> starts;
  for (size_t i = 0; i < call_.outputs.size(); ++i) {
    if (call_.outputs[i].numel() == 0) continue;
    starts.emplace_back(static_cast<const char*>(call_.outputs[i].const_data_ptr()), i);
  }
  std::sort(starts.begin(), starts.end());
  for (size_t i = 1; i < starts.size(); ++i) {
    const size_t before = starts[i - 1].second;
    if (starts[i].first == starts[i - 1].first) {
      Refuse(What(submissions_[starts[i].second].request.name) + ": it shares its memory with '" +
             submissions_[before].request.name +
             "' of the same group. Pass each tensor once, or pass a clone().");
    }
  }
}

Handle CollectiveCall::Enqueue() {
  if (submissions_.size() > 1) RefuseOverlappingOutputs();
  // Not before: outputs may share memory with inputs, and have been noted as written by now.
  for (InFlightInput& input : call_.inputs) input.version = input.tensor._version();
  call_.late = late_;
  return InFlight::Instance().Submit(std::move(submissions_), std::move(call_), Pace::kDriven);
}

ReduceOp ToReduceOp(OpKind op, int number) {
  const std::string name(OpKindName(op));
  if (number < 0 || number >= kReduceOpCount) {
    CollectiveCall::Refuse(name + ": op " + std::to_string(number) +
                           " is unknown, expected Average, Sum, Min, Max, Product or Adasum");
  }
  const auto reduce_op = static_cast<ReduceOp>(number);
  if (reduce_op == ReduceOp::kAdasum && op != OpKind::kAllreduce) {
    CollectiveCall::Refuse(name +
                           ": op Adasum works with allreduce only, because it compares whole "
                           "tensors. Use allreduce, or another op.");
  }
  return reduce_op;
}

void RequireFirstDim(const at::Tensor& tensor, const std::string& what) {
  if (tensor.dim() > 0) return;
  CollectiveCall::Refuse(
      what +
      ": got a 0-d tensor, expected at least one dimension to split over the ranks. "
      "Pass tensor.reshape(1).");
}

void CheckSplits(const std::vector<int64_t>& splits, const at::Tensor& input, int size,
                 const std::string& what) {
  if (splits.size() != static_cast<size_t>(size)) {
    CollectiveCall::Refuse(what + ": splits has " + std::to_string(splits.size()) +
                           " entries, expected one for each of the " + std::to_string(size) +
                           " ranks");
  }
  int64_t rows = 0;
  for (size_t i = 0; i < splits.size(); ++i) {
    if (splits[i] < 0 || splits[i] > input.size(0)) {
      CollectiveCall::Refuse(what + ": splits[" + std::to_string(i) + "] is " +
                             std::to_string(splits[i]) + ", expected 0 to the first dimension " +
                             std::to_string(input.size(0)));
    }
    rows += splits[i];
  }
  if (rows != input.size(0)) {
    CollectiveCall::Refuse(what + ": splits sum to " + std::to_string(rows) +
                           ", expected the first dimension " + std::to_string(input.size(0)));
  }
}

}  // namespace mydist
