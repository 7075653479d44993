// enqueue_* for every collective, poll and wait: checks the arguments, lays the tensors out, hands
// them to the engine. Everything refused here is refused before any communication.
#include <ATen/EmptyTensor.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/process.h"
#include "torch/bindings.h"
#include "torch/error_translation.h"
#include "torch/in_flight.h"
#include "torch/reduction_check.h"
#include "torch/tensor_adapter.h"

namespace mydist {
namespace {

using Tensors = std::vector<at::Tensor>;
using Names = std::vector<std::string>;

// What is the same for all tensors of one call.
struct CallTraits {
  OpKind op;
  std::string group{};
  ProcessSetId process_set = kGlobalProcessSet;
  ReduceOp reduce_op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t root_rank = -1;
};

// Collects the tensors of one call and enqueues them under one handle.
class Call {
 public:
  Call(CallTraits traits, size_t tensor_count) : traits_(std::move(traits)), count_(tensor_count) {
    const std::string op(OpKindName(traits_.op));
    if (count_ == 0) {
      Refuse(op + ": got an empty list of tensors, expected at least one");
    }
    if (traits_.process_set != kGlobalProcessSet) {
      Refuse(op + ": process set " + std::to_string(traits_.process_set) +
             " does not exist; this version has the global process set (id 0) only");
    }
  }

  [[noreturn]] static void Refuse(std::string message) {
    throw StatusError(Status::InvalidArgument(std::move(message)));
  }

  std::string What(const std::string& name) const {
    const std::string op(OpKindName(traits_.op));
    ThrowIfError(CheckName(name, op));
    return op + " of '" + name + "'";
  }

  // A tensor the engine reads: checked, dense and kept alive.
  Submission& AddInput(const at::Tensor& tensor, const std::string& name) {
    const std::string what = What(name);
    const DataType dtype = ValueOrThrow(CheckReadable(tensor, what));
    if (Reduces(traits_.op)) {
      ThrowIfError(
          CheckReduction({traits_.reduce_op, traits_.prescale, traits_.postscale}, dtype, what));
    }
    at::Tensor input = Dense(tensor);
    Submission submission;
    Request& request = submission.request;
    request.name = name;
    request.op = traits_.op;
    request.dtype = dtype;
    request.shape = ShapeOf(tensor);
    request.reduce_op = traits_.reduce_op;
    request.root_rank = traits_.root_rank;
    request.prescale = traits_.prescale;
    request.postscale = traits_.postscale;
    request.process_set = traits_.process_set;
    request.group = traits_.group;
    request.group_size = traits_.group.empty() ? 0 : static_cast<int32_t>(count_);
    submission.input = input.const_data_ptr();
    call_.memory.push_back(std::move(input));
    submissions_.push_back(std::move(submission));
    return submissions_.back();
  }

  // Allreduce and broadcast: the result has the shape of the input and goes to `output`, which may
  // be the input itself; without one a new tensor is made.
  void AddInputAndOutput(const at::Tensor& input, const at::Tensor* output,
                         const std::string& name) {
    Submission& submission = AddInput(input, name);
    if (output == nullptr) {
      call_.outputs.emplace_back(at::detail::empty_cpu(input.sizes(), input.scalar_type()));
      submission.output = call_.outputs.back().mutable_data_ptr();
      return;
    }
    CheckOutput(input, *output, name);
    at::Tensor dense = output->is_same(input) ? call_.memory.back() : Dense(*output);
    submission.output = dense.mutable_data_ptr();
    if (output->is_same(input)) submission.input = submission.output;
    // Saved-for-backward checks of autograd must see that the values change.
    if (!output->is_inference()) output->unsafeGetTensorImpl()->bump_version();
    if (!dense.is_same(*output)) call_.write_backs.push_back({*output, dense});
    call_.outputs.push_back(*output);
    call_.memory.push_back(std::move(dense));
  }

  // Allgather, alltoall and reducescatter: the engine asks for memory when the shape is agreed on.
  // Runs without the GIL on the engine's thread, hence no dispatcher and no Python.
  void AllocateLate() {
    late_ = std::make_shared<LateOutputs>(submissions_.size());
    for (size_t i = 0; i < submissions_.size(); ++i) {
      const at::ScalarType dtype = ToScalarType(submissions_[i].request.dtype);
      submissions_[i].allocate = [late = late_, i, dtype](const Shape& shape) -> Result<void*> {
        try {
          late->tensors[i] = at::Tensor(at::detail::empty_cpu(shape.dims(), dtype));
          return late->tensors[i].mutable_data_ptr();
        } catch (const std::exception& error) {
          return Status::Internal("no memory for an output of shape " + shape.ToString() + ": " +
                                  error.what());
        }
      };
    }
  }

  void ReceiveSplits() {
    submissions_.back().on_numbers = [late = late_](const std::vector<int64_t>& splits) {
      late->received_splits = splits;
    };
    call_.gives_splits = true;
  }

  Handle Enqueue() {
    if (submissions_.size() > 1) RefuseOverlappingOutputs();
    call_.late = late_;
    return InFlight::Instance().Submit(std::move(submissions_), std::move(call_));
  }

 private:
  void CheckOutput(const at::Tensor& input, const at::Tensor& output, const std::string& name) {
    const std::string what = What(name);
    if (!output.is_same(input)) {
      ThrowIfError(CheckReadable(output, what).status());
      if (output.sizes() != input.sizes() || output.scalar_type() != input.scalar_type()) {
        Refuse(what + ": the output is " + DtypeName(output.scalar_type()) + " of shape " +
               ShapeOf(output).ToString() + ", expected " + DtypeName(input.scalar_type()) +
               " of shape " + ShapeOf(input).ToString() + " as the input");
      }
    }
    ThrowIfError(CheckWritable(output, what));
  }

  // Two tensors of a group writing to the same memory would race with each other.
  void RefuseOverlappingOutputs() const {
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
               "' of the same group. Pass each tensor once, or a clone() of it.");
      }
    }
  }

  CallTraits traits_;
  size_t count_;
  std::vector<Submission> submissions_;
  InFlightCall call_;
  std::shared_ptr<LateOutputs> late_;
};

void RequireSameLength(OpKind op, size_t tensor_count, size_t name_count) {
  if (tensor_count == name_count) return;
  Call::Refuse(std::string(OpKindName(op)) + ": got " + std::to_string(tensor_count) +
               " tensors and " + std::to_string(name_count) + " names, expected one name each");
}

ReduceOp ToReduceOp(OpKind op, int number) {
  if (number >= 0 && number < kReduceOpCount) return static_cast<ReduceOp>(number);
  Call::Refuse(std::string(OpKindName(op)) + ": op " + std::to_string(number) +
               " is unknown, expected Average, Sum, Min, Max or Product");
}

// The first dimension is what allgather, alltoall and reducescatter split or join.
void RequireFirstDim(const at::Tensor& tensor, const std::string& what) {
  if (tensor.dim() > 0) return;
  Call::Refuse(what +
               ": got a 0-d tensor, expected at least one dimension to split over the ranks. "
               "Pass tensor.reshape(1).");
}

Handle EnqueueAllreduce(const Tensors& inputs, const std::optional<Tensors>& outputs,
                        const Names& names, const std::string& group, int reduce_op,
                        double prescale, double postscale, int process_set) {
  constexpr OpKind kOp = OpKind::kAllreduce;
  Call call({.op = kOp,
             .group = group,
             .process_set = process_set,
             .reduce_op = ToReduceOp(kOp, reduce_op),
             .prescale = prescale,
             .postscale = postscale},
            inputs.size());
  RequireSameLength(kOp, inputs.size(), names.size());
  if (outputs && outputs->size() != inputs.size()) {
    Call::Refuse("allreduce: got " + std::to_string(outputs->size()) + " outputs for " +
                 std::to_string(inputs.size()) + " inputs, expected one each");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    call.AddInputAndOutput(inputs[i], outputs ? &(*outputs)[i] : nullptr, names[i]);
  }
  return call.Enqueue();
}

Handle EnqueueAllgather(const Tensors& inputs, const Names& names, const std::string& group,
                        int process_set) {
  constexpr OpKind kOp = OpKind::kAllgather;
  Call call({.op = kOp, .group = group, .process_set = process_set}, inputs.size());
  RequireSameLength(kOp, inputs.size(), names.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    Submission& submission = call.AddInput(inputs[i], names[i]);
    if (inputs[i].dim() == 0) submission.request.shape = Shape({1});
  }
  call.AllocateLate();
  return call.Enqueue();
}

Handle EnqueueBroadcast(const at::Tensor& input, const std::optional<at::Tensor>& output,
                        int root_rank, const std::string& name, int process_set) {
  Call call({.op = OpKind::kBroadcast, .process_set = process_set, .root_rank = root_rank}, 1);
  const int size = ValueOrThrow(process::GetTopology()).size;
  if (root_rank < 0 || root_rank >= size) {
    Call::Refuse(call.What(name) + ": root_rank " + std::to_string(root_rank) +
                 " is not a rank of this job of size " + std::to_string(size) + ", expected 0 to " +
                 std::to_string(size - 1));
  }
  call.AddInputAndOutput(input, output ? &*output : nullptr, name);
  return call.Enqueue();
}

std::vector<int64_t> EvenSplits(const at::Tensor& input, int size, const std::string& what) {
  if (input.size(0) % size != 0) {
    Call::Refuse(what + ": the first dimension is " + std::to_string(input.size(0)) +
                 ", which is not divisible by the number of ranks " + std::to_string(size) +
                 ". Pass splits, the number of rows for each rank.");
  }
  return std::vector<int64_t>(static_cast<size_t>(size), input.size(0) / size);
}

void CheckSplits(const std::vector<int64_t>& splits, const at::Tensor& input, int size,
                 const std::string& what) {
  if (splits.size() != static_cast<size_t>(size)) {
    Call::Refuse(what + ": splits has " + std::to_string(splits.size()) +
                 " entries, expected one for each of the " + std::to_string(size) + " ranks");
  }
  int64_t rows = 0;
  for (size_t i = 0; i < splits.size(); ++i) {
    if (splits[i] < 0 || splits[i] > input.size(0)) {
      Call::Refuse(what + ": splits[" + std::to_string(i) + "] is " + std::to_string(splits[i]) +
                   ", expected 0 to the first dimension " + std::to_string(input.size(0)));
    }
    rows += splits[i];
  }
  if (rows != input.size(0)) {
    Call::Refuse(what + ": splits sum to " + std::to_string(rows) +
                 ", expected the first dimension " + std::to_string(input.size(0)));
  }
}

Handle EnqueueAlltoall(const at::Tensor& input, const std::optional<std::vector<int64_t>>& splits,
                       const std::string& name, int process_set) {
  Call call({.op = OpKind::kAlltoall, .process_set = process_set}, 1);
  const std::string what = call.What(name);
  Submission& submission = call.AddInput(input, name);
  RequireFirstDim(input, what);
  const int size = ValueOrThrow(process::GetTopology()).size;
  if (splits) {
    CheckSplits(*splits, input, size, what);
    submission.splits = *splits;
  } else {
    submission.splits = EvenSplits(input, size, what);
  }
  call.AllocateLate();
  call.ReceiveSplits();
  return call.Enqueue();
}

Handle EnqueueReducescatter(const Tensors& inputs, const Names& names, const std::string& group,
                            int reduce_op, double prescale, double postscale, int process_set) {
  constexpr OpKind kOp = OpKind::kReducescatter;
  Call call({.op = kOp,
             .group = group,
             .process_set = process_set,
             .reduce_op = ToReduceOp(kOp, reduce_op),
             .prescale = prescale,
             .postscale = postscale},
            inputs.size());
  RequireSameLength(kOp, inputs.size(), names.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    call.AddInput(inputs[i], names[i]);
    RequireFirstDim(inputs[i], call.What(names[i]));
  }
  call.AllocateLate();
  return call.Enqueue();
}

Handle EnqueueBarrier(const std::string& name, int process_set) {
  const Call checked({.op = OpKind::kBarrier, .process_set = process_set}, 1);
  checked.What(name);
  Submission submission;
  submission.request.name = name;
  submission.request.op = OpKind::kBarrier;
  submission.request.shape = Shape({0});
  std::vector<Submission> submissions;
  submissions.push_back(std::move(submission));
  return InFlight::Instance().Submit(std::move(submissions), {});
}

}  // namespace

void BindCollectives(py::module_& module) {
  using py::arg;
  module.def("enqueue_allreduce", &EnqueueAllreduce, arg("inputs"), arg("outputs").none(true),
             arg("names"), arg("group"), arg("reduce_op"), arg("prescale_factor"),
             arg("postscale_factor"), arg("process_set"));
  module.def("enqueue_allgather", &EnqueueAllgather, arg("inputs"), arg("names"), arg("group"),
             arg("process_set"));
  module.def("enqueue_broadcast", &EnqueueBroadcast, arg("input"), arg("output").none(true),
             arg("root_rank"), arg("name"), arg("process_set"));
  module.def("enqueue_alltoall", &EnqueueAlltoall, arg("input"), arg("splits").none(true),
             arg("name"), arg("process_set"));
  module.def("enqueue_reducescatter", &EnqueueReducescatter, arg("inputs"), arg("names"),
             arg("group"), arg("reduce_op"), arg("prescale_factor"), arg("postscale_factor"),
             arg("process_set"));
  module.def("enqueue_barrier", &EnqueueBarrier, arg("name"), arg("process_set"));
  module.def(
      "poll", [](Handle handle) { return InFlight::Instance().Poll(handle); }, arg("handle"));
  module.def(
      "wait", [](Handle handle) { return InFlight::Instance().Wait(handle); }, arg("handle"));
}

}  // namespace mydist
