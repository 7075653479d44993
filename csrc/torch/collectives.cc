// The collectives, poll and wait.

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "job/job.h"
#include "kernels/element.h"
#include "torch/bindings.h"
#include "torch/collective_call.h"
#include "torch/error_translation.h"
#include "torch/in_flight.h"

namespace mydist {

namespace {

using Tensors = std::vector<at::Tensor>;
using Names = std::vector<std::string>;

void RequireSameLength(OpKind op, size_t tensor_count, size_t name_count) {
  if (tensor_count == name_count) return;
  CollectiveCall::Refuse(std::string(OpKindName(op)) + ": got " + std::to_string(tensor_count) +
                         " tensors and " + std::to_string(name_count) +
                         " names, expected one name each");
}

Handle EnqueueAllreduce(const Tensors& inputs, const std::optional<Tensors>& outputs,
                        const Names& names, const std::string& group, int reduce_op,
                        double prescale, double postscale, int process_set, int compression) {
  constexpr OpKind kOp = OpKind::kAllreduce;
  CollectiveCall call({.op = kOp,
                       .group = group,
                       .process_set = process_set,
                       .reduce_op = ToReduceOp(kOp, reduce_op),
                       .prescale = prescale,
                       .postscale = postscale,
                       .wire_format = ToWireFormat(compression)},
                      inputs.size());
  RequireSameLength(kOp, inputs.size(), names.size());
  if (outputs && outputs->size() != inputs.size()) {
    CollectiveCall::Refuse("allreduce: got " + std::to_string(outputs->size()) + " outputs for " +
                           std::to_string(inputs.size()) + " inputs, expected one each");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    call.AddInputAndOutput(inputs[i], outputs ? &(*outputs)[i] : nullptr, names[i]);
  }
  return call.Enqueue();
}

Handle EnqueueAllgather(const Tensors& inputs, const Names& names, const std::string& group,
                        int process_set, const Tensors& outputs) {
  constexpr OpKind kOp = OpKind::kAllgather;
  CollectiveCall call({.op = kOp, .group = group, .process_set = process_set}, inputs.size());
  RequireSameLength(kOp, inputs.size(), names.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    Submission& submission = call.AddInput(inputs[i], names[i]);
    if (inputs[i].dim() == 0) submission.request.shape = Shape({1});
  }
  call.AllocateLate(outputs);
  return call.Enqueue();
}

Handle EnqueueBroadcast(const at::Tensor& input, const std::optional<at::Tensor>& output,
                        int root_rank, const std::string& name, int process_set) {
  CollectiveCall call(
      {.op = OpKind::kBroadcast, .process_set = process_set, .root_rank = root_rank}, 1);
  call.RequireMember({"root_rank", root_rank}, name);
  call.AddInputAndOutput(input, output ? &*output : nullptr, name);
  return call.Enqueue();
}

std::vector<int64_t> EvenSplits(const at::Tensor& input, int size, const std::string& what) {
  if (input.size(0) % size != 0) {
    CollectiveCall::Refuse(what + ": the first dimension is " + std::to_string(input.size(0)) +
                           ", which is not divisible by the number of ranks " +
                           std::to_string(size) +
                           ". Pass splits, the number of rows for each "
                           "rank.");
  }
  return std::vector<int64_t>(static_cast<size_t>(size), input.size(0) / size);
}

Handle EnqueueAlltoall(const at::Tensor& input, const std::optional<std::vector<int64_t>>& splits,
                       const std::string& name, int process_set) {
  CollectiveCall call({.op = OpKind::kAlltoall, .process_set = process_set}, 1);
  const std::string what = call.What(name);
  Submission& submission = call.AddInput(input, name);
  RequireFirstDim(input, what);
  if (splits) {
    CheckSplits(*splits, input, call.Size(), what);
    submission.splits = *splits;
  } else {
    submission.splits = EvenSplits(input, call.Size(), what);
  }
  call.AllocateLate();
  call.ReceiveNumbers();
  return call.Enqueue();
}

Handle EnqueueReducescatter(const Tensors& inputs, const Names& names, const std::string& group,
                            int reduce_op, double prescale, double postscale, int process_set,
                            const Tensors& outputs) {
  constexpr OpKind kOp = OpKind::kReducescatter;
  CollectiveCall call({.op = kOp,
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
  call.AllocateLate(outputs);
  return call.Enqueue();
}

Handle EnqueueBarrier(const std::string& name, int process_set) {
  CollectiveCall call({.op = OpKind::kBarrier, .process_set = process_set}, 1);
  call.AddSignal(name);
  return call.Enqueue();
}

// Other ranks may wait for a call that this rank has refused. This rank waits for no answer.
void TellRefusal(const std::string& name, const std::string& group, int process_set,
                 const std::vector<int32_t>& ends) {
  const OpKind op = ends.empty() ? OpKind::kBarrier : OpKind::kSendReceive;
  CollectiveCall call({.op = op, .group = group, .process_set = process_set}, 1);
  Request& request = call.AddSignal(name).request;
  request.ranks = ends;
  request.values = InputValues::kRefused;
  process::Release(call.Enqueue());
}

// The collectives in which ranks play different parts.

bool IsThisRank(int rank) {
  return ValueOrThrow(process::CurrentJob())->engine().topology().rank == rank;
}

// At the root the result goes to `output`, or to a new tensor.
Handle EnqueueReduce(const at::Tensor& input, const std::optional<at::Tensor>& output,
                     int root_rank, const std::string& name, int reduce_op, double prescale,
                     double postscale, int process_set) {
  constexpr OpKind kOp = OpKind::kReduce;
  CollectiveCall call({.op = kOp,
                       .process_set = process_set,
                       .reduce_op = ToReduceOp(kOp, reduce_op),
                       .prescale = prescale,
                       .postscale = postscale,
                       .root_rank = root_rank},
                      1);
  call.RequireMember({"root_rank", root_rank}, name);
  if (IsThisRank(root_rank)) {
    call.AddInputAndOutput(input, output ? &*output : nullptr, name);
  } else {
    call.AddInput(input, name);
  }
  return call.Enqueue();
}

Handle EnqueueGather(const at::Tensor& input, int root_rank, const std::string& name,
                     int process_set) {
  CollectiveCall call({.op = OpKind::kGather, .process_set = process_set, .root_rank = root_rank},
                      1);
  call.RequireMember({"root_rank", root_rank}, name);
  Submission& submission = call.AddInput(input, name);
  if (input.dim() == 0) submission.request.shape = Shape({1});
  if (IsThisRank(root_rank)) call.AllocateLate();
  return call.Enqueue();
}

Handle EnqueueScatter(const at::Tensor& tensor, const std::optional<std::vector<int64_t>>& splits,
                      int root_rank, const std::string& name, int process_set) {
  CollectiveCall call({.op = OpKind::kScatter, .process_set = process_set, .root_rank = root_rank},
                      1);
  call.RequireMember({"root_rank", root_rank}, name);
  const std::string what = call.What(name);
  if (IsThisRank(root_rank)) {
    Submission& submission = call.AddInput(tensor, name);
    RequireFirstDim(tensor, what);
    if (splits) CheckSplits(*splits, tensor, call.Size(), what);
    submission.splits = splits ? *splits : ScatterRowCounts(tensor.size(0), call.Size());
  } else {
    call.AddShape(tensor, name);
    RequireFirstDim(tensor, what);
  }
  call.AllocateLate();
  return call.Enqueue();
}

// The sender's `tensor` is read, the receiver's written.
Handle EnqueueSendReceive(const at::Tensor& tensor, int source, int destination,
                          const std::string& name, int process_set) {
  CollectiveCall call({.op = OpKind::kSendReceive, .process_set = process_set}, 1);
  call.RequireMember({"source", source}, name);
  call.RequireMember({"destination", destination}, name);
  const bool is_sender = IsThisRank(source);
  if (source == destination || !(is_sender || IsThisRank(destination))) {
    CollectiveCall::Refuse(call.What(name) + ": from rank " + std::to_string(source) + " to rank " +
                           std::to_string(destination) +
                           ", expected two different ranks of which this process is one");
  }
  Submission& submission = is_sender ? call.AddInput(tensor, name) : call.AddOutput(tensor, name);
  submission.request.ranks = {source, destination};
  return call.Enqueue();
}

}  // namespace

void BindCollectives(py::module_& module) {
  using py::arg;
  DefineCollective(module, "allreduce", &EnqueueAllreduce, arg("inputs"), arg("outputs").none(true),
                   arg("names"), arg("group"), arg("reduce_op"), arg("prescale_factor"),
                   arg("postscale_factor"), arg("process_set"), arg("compression") = 0);
  DefineCollective(module, "allgather", &EnqueueAllgather, arg("inputs"), arg("names"),
                   arg("group"), arg("process_set"), arg("outputs") = Tensors());
  DefineCollective(module, "broadcast", &EnqueueBroadcast, arg("input"), arg("output").none(true),
                   arg("root_rank"), arg("name"), arg("process_set"));
  DefineCollective(module, "alltoall", &EnqueueAlltoall, arg("input"), arg("splits").none(true),
                   arg("name"), arg("process_set"));
  DefineCollective(module, "reducescatter", &EnqueueReducescatter, arg("inputs"), arg("names"),
                   arg("group"), arg("reduce_op"), arg("prescale_factor"), arg("postscale_factor"),
                   arg("process_set"), arg("outputs") = Tensors());
  DefineCollective(module, "barrier", &EnqueueBarrier, arg("name"), arg("process_set"));
  module.def("tell_refusal", &TellRefusal, arg("name"), arg("group"), arg("process_set"),
             arg("ends"));
  DefineCollective(module, "reduce", &EnqueueReduce, arg("input"), arg("output").none(true),
                   arg("root_rank"), arg("name"), arg("reduce_op"), arg("prescale_factor"),
                   arg("postscale_factor"), arg("process_set"));
  DefineCollective(module, "gather", &EnqueueGather, arg("input"), arg("root_rank"), arg("name"),
                   arg("process_set"));
  DefineCollective(module, "scatter", &EnqueueScatter, arg("tensor"), arg("splits").none(true),
                   arg("root_rank"), arg("name"), arg("process_set"));
  DefineCollective(module, "send_receive", &EnqueueSendReceive, arg("tensor"), arg("source"),
                   arg("destination"), arg("name"), arg("process_set"));
  module.def(
      "carry_integers",
      [](const at::Tensor& tensor) {
        return IntegerAverage{.dtype = tensor.scalar_type()}.Carry(tensor);
      },
      arg("tensor"));
  module.def(
      "average_integers",
      [](const at::Tensor& sum, at::ScalarType dtype, int64_t divisor) {
        return IntegerAverage{.dtype = dtype}.Finish(sum, divisor);
      },
      arg("sum"), arg("dtype"), arg("divisor"));
  module.def(
      "poll", [](Handle handle) { return InFlight::Instance().Poll(handle); }, arg("handle"));
  module.def(
      "wait", [](Handle handle) { return InFlight::Instance().Wait(handle); }, arg("handle"));
}

}  // namespace mydist
