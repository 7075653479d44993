// enqueue_* of the collectives in which ranks play different parts: reduce, gather, scatter, send
// and receive.
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "job/process.h"
#include "torch/bindings.h"
#include "torch/collective_binding.h"
#include "torch/collective_call.h"
#include "torch/error_translation.h"

namespace mydist {
namespace {

bool IsThisRank(int rank) { return ValueOrThrow(process::GetTopology()).rank == rank; }

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

// As even as possible: the first ranks get one row more.
std::vector<int64_t> DealtRows(int64_t rows, int size) {
  std::vector<int64_t> splits(static_cast<size_t>(size), rows / size);
  for (int64_t i = 0; i < rows % size; ++i) ++splits[static_cast<size_t>(i)];
  return splits;
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
    submission.splits = splits ? *splits : DealtRows(tensor.size(0), call.Size());
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

void BindRooted(py::module_& module) {
  using py::arg;
  DefineCollective(module, "reduce", &EnqueueReduce, arg("input"), arg("output").none(true),
                   arg("root_rank"), arg("name"), arg("reduce_op"), arg("prescale_factor"),
                   arg("postscale_factor"), arg("process_set"));
  DefineCollective(module, "gather", &EnqueueGather, arg("input"), arg("root_rank"), arg("name"),
                   arg("process_set"));
  DefineCollective(module, "scatter", &EnqueueScatter, arg("tensor"), arg("splits").none(true),
                   arg("root_rank"), arg("name"), arg("process_set"));
  DefineCollective(module, "send_receive", &EnqueueSendReceive, arg("tensor"), arg("source"),
                   arg("destination"), arg("name"), arg("process_set"));
}

}  // namespace mydist
