#include "torch/process_group/lane_backend.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "torch/process_group/dense_tensors.h"
#include "torch/process_group/group_reduction.h"
#include "torch/process_group/lane_work.h"
#include "torch/tensor_memory.h"

namespace mydist {
namespace {

using Tensors = std::vector<at::Tensor>;

// One tensor, as most calls have it.
const at::Tensor& Only(const Tensors& tensors, const char* call) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "mydist: ", call, " got ", tensors.size(),
                    " tensors, expected one");
  return tensors.front();
}

const Tensors& Only(const std::vector<Tensors>& lists, const char* call) {
  TORCH_CHECK_VALUE(lists.size() == 1, "mydist: ", call, " got ", lists.size(),
                    " lists of tensors, expected one");
  return lists.front();
}

int64_t BytesOf(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// What a call that only moves data says of its tensor: the dtype, or bytes of what has none here.
LaneCall CallOf(OpKind op, const at::Tensor& tensor, int root = -1) {
  const std::optional<DataType> dtype = ToDataType(tensor.scalar_type());
  const int64_t count = dtype ? tensor.numel() : BytesOf(tensor);
  return {op, dtype.value_or(DataType::kUint8), count, ReduceOp::kSum, root};
}

// "3 float32, 4 float64"; nothing when all are alike.
std::string UnequalParts(const Tensors& tensors) {
  const at::Tensor& first = tensors.front();
  const bool are_alike = std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& each) {
    return each.numel() == first.numel() && each.scalar_type() == first.scalar_type();
  });
  if (are_alike) return "";
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    if (!text.empty()) text += ", ";
    text += std::to_string(tensor.numel()) + " " + DtypeName(tensor.scalar_type());
  }
  return text;
}

// Tensors up to this are copied together: for each by itself the ranks would wait for each other.
constexpr int64_t kPackedBytes = int64_t{64} << 10;

// Behind the last of the tensors from `begin` on that are reduced as one. Equal on all ranks, which
// have agreed on sizes and dtypes.
size_t PackEnd(const Tensors& tensors, size_t begin) {
  const auto is_small = [](const at::Tensor& each) { return BytesOf(each) <= kPackedBytes; };
  size_t end = begin + 1;
  if (!is_small(tensors[begin])) return end;
  while (end < tensors.size() && is_small(tensors[end]) &&
         tensors[end].scalar_type() == tensors[begin].scalar_type()) {
    ++end;
  }
  return end;
}

std::vector<int64_t> BytesOf(const Tensors& tensors) {
  std::vector<int64_t> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(BytesOf(tensor));
  return bytes;
}

}  // namespace

LaneBackend::WorkPtr LaneBackend::Submit(Plan plan, LaneWork::Run run) {
  CheckProcess();
  plan.timeout = LimitOf(plan.timeout);
  auto operation =
      c10::make_intrusive<LaneOperation>(lane_, plan.type, plan.title, plan.inputs, plan.outputs);
  auto guarded = [operation, run = std::move(run),
                  inputs = std::move(plan.inputs)](const LaneSite& site) {
    operation->Begin();
    const c10::InferenceMode no_graph(false);
    const at::NoGradGuard no_grad;
    return CaughtFrom([&] { return run(site); });
  };
  const std::shared_ptr<CompletionHook> hook = hook_;
  const uint64_t number = ++submitted_count_;
  if (hook != nullptr) hook->Expect();
  // A group of one rank waits for no other one, and needs no thread.
  const bool is_alone = getSize() == 1;
  const std::shared_ptr<LaneWork> work = lane_->Submit(
      plan.call, plan.timeout, std::move(guarded),
      [operation, hook, number](const Status& status) {
        operation->Complete(status);
        if (hook != nullptr) hook->Call(operation->Info(number));
      },
      is_alone || !plan.is_async);
  operation->SetWork(work);
  if (is_alone) lane_->Wait(*work, kNever);
  return Note(operation);
}

LaneBackend::WorkPtr LaneBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = Only(tensors, "broadcast");
  CheckWritten(tensor, "broadcast");
  const int root = static_cast<int>(opts.rootRank);
  CheckRoot("broadcast", root);
  const LaneCall call = CallOf(OpKind::kBroadcast, tensor, root);
  return Submit({c10d::OpType::BROADCAST, "mydist:broadcast", call, opts.timeout, opts.asyncOp,
                 tensors, tensors},
                [tensor, root](const LaneSite& site) -> Status {
                  const InAndOut memory(tensor);
                  MYDIST_ASSIGN_OR_RETURN(Collectives * bytes, site.ForBytes(OpKind::kBroadcast));
                  MYDIST_RETURN_IF_ERROR(bytes->Broadcast(memory.data(), memory.bytes(), root));
                  return memory.CopyBack();
                });
}

LaneBackend::WorkPtr LaneBackend::ReduceAll(Tensors& tensors, const c10d::AllreduceOptions& opts,
                                            c10d::OpType type) {
  constexpr const char* kTitle = "mydist:all_reduce";
  if (tensors.empty()) {
    return Submit({type, kTitle, {}, opts.timeout, opts.asyncOp, {}, {}}, Nothing);
  }
  std::vector<GroupReduction> reductions;
  int64_t count = 0;
  for (const at::Tensor& tensor : tensors) {
    reductions.emplace_back(opts.reduceOp, tensor, "all_reduce");
    count += tensor.numel();
  }
  LaneCall call = reductions.front().Call(OpKind::kAllreduce, count);
  call.pieces = static_cast<int64_t>(tensors.size());
  call.parts = UnequalParts(tensors);
  return Submit({type, kTitle, call, opts.timeout, opts.asyncOp, tensors, tensors},
                [tensors, reductions](const LaneSite& site) -> Status {
                  for (size_t begin = 0; begin < tensors.size();) {
                    const size_t end = PackEnd(tensors, begin);
                    const Tensors pack(tensors.begin() + static_cast<ptrdiff_t>(begin),
                                       tensors.begin() + static_cast<ptrdiff_t>(end));
                    MYDIST_RETURN_IF_ERROR(
                        pack.size() == 1 ? reductions[begin].Allreduce(site, InAndOut(pack[0]))
                                         : reductions[begin].AllreducePacked(site, pack));
                    begin = end;
                  }
                  return Status::Ok();
                });
}

LaneBackend::WorkPtr LaneBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (Only(tensors, "all_reduce").is_sparse()) return allreduce_sparse(tensors, opts);
  return ReduceAll(tensors, opts, c10d::OpType::ALLREDUCE);
}

LaneBackend::WorkPtr LaneBackend::allreduce_coalesced(Tensors& tensors,
                                                      const c10d::AllreduceCoalescedOptions& opts) {
  return ReduceAll(tensors, opts, c10d::OpType::ALLREDUCE_COALESCED);
}

LaneBackend::WorkPtr LaneBackend::allreduce_sparse(Tensors& tensors,
                                                   const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = Only(tensors, "all_reduce");
  const SparseSum sum(opts.reduceOp, tensor);
  return Submit({c10d::OpType::_ALLREDUCE_SPARSE, "mydist:sparse_all_reduce", sum.Call(),
                 opts.timeout, opts.asyncOp, tensors, tensors},
                [tensor, sum](const LaneSite& site) { return sum.Run(site, tensor); });
}

LaneBackend::WorkPtr LaneBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = Only(tensors, "reduce");
  const GroupReduction reduction(opts.reduceOp, tensor, "reduce");
  const int root = static_cast<int>(opts.rootRank);
  CheckRoot("reduce", root);
  return Submit(
      {c10d::OpType::REDUCE, "mydist:reduce", reduction.Call(OpKind::kReduce, tensor.numel(), root),
       opts.timeout, opts.asyncOp, tensors, tensors},
      [tensor, reduction, root](const LaneSite& site) -> Status {
        return reduction.Reduce(site, InAndOut(tensor), root);
      });
}

LaneBackend::WorkPtr LaneBackend::GatherAll(Tensors outputs, const at::Tensor& input,
                                            const c10d::AllgatherOptions& opts, c10d::OpType type) {
  CheckMoved(input, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(getSize()), "mydist: all_gather got ",
                    outputs.size(), " outputs, expected one for each of ", getSize(), " ranks");
  TORCH_CHECK_VALUE(BytesOf(outputs[static_cast<size_t>(getRank())]) == BytesOf(input),
                    "mydist: all_gather: the output for this rank has another size than its input");
  for (const at::Tensor& output : outputs) {
    CheckWritten(output, "all_gather");
    TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "mydist: all_gather of ",
                      DtypeName(input.scalar_type()), " got an output of ",
                      DtypeName(output.scalar_type()));
  }
  const std::vector<int64_t> counts = BytesOf(outputs);
  LaneCall call = CallOf(OpKind::kAllgather, input);
  call.count = std::accumulate(counts.begin(), counts.end(), int64_t{0}) / SizeOf(call.dtype);
  call.parts = UnequalParts(outputs);
  return Submit(
      {type, "mydist:all_gather", call, opts.timeout, opts.asyncOp, {input}, outputs},
      [outputs, input, counts](const LaneSite& site) -> Status {
        const InOrder memory(outputs);
        const at::Tensor own = Dense(input);
        MYDIST_ASSIGN_OR_RETURN(Collectives * bytes, site.ForBytes(OpKind::kAllgather));
        MYDIST_RETURN_IF_ERROR(bytes->Allgather(own.const_data_ptr(), memory.data(), counts));
        return memory.CopyBack();
      });
}

LaneBackend::WorkPtr LaneBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& opts) {
  return GatherAll(Only(outputs, "all_gather"), Only(inputs, "all_gather"), opts,
                   c10d::OpType::ALLGATHER);
}

LaneBackend::WorkPtr LaneBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions& opts) {
  return GatherAll(EqualPieces(output, getSize(), "all_gather"), input, opts,
                   c10d::OpType::_ALLGATHER_BASE);
}

LaneBackend::WorkPtr LaneBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(), "mydist: all_gather got ",
                    outputs.size(), " outputs for ", inputs.size(), " inputs");
  WorkPtr last;
  for (size_t i = 0; i < inputs.size(); ++i) last = _allgather_base(outputs[i], inputs[i], opts);
  return last;  // Operations of a lane end in their order.
}

LaneBackend::WorkPtr LaneBackend::allgather_coalesced(std::vector<Tensors>& outputs,
                                                      Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  TORCH_CHECK_VALUE(!inputs.empty(), "mydist: all_gather got no inputs");
  for (const Tensors& of_rank : outputs) {
    TORCH_CHECK_VALUE(of_rank.size() == inputs.size(), "mydist: all_gather got ", of_rank.size(),
                      " outputs for one rank, and ", inputs.size(), " inputs");
  }
  WorkPtr last;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_input;
    for (const Tensors& of_rank : outputs) of_input.push_back(of_rank[i]);
    last = GatherAll(std::move(of_input), inputs[i], opts, c10d::OpType::ALLGATHER_COALESCED);
  }
  return last;
}

LaneBackend::WorkPtr LaneBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& opts) {
  const at::Tensor input = Only(inputs, "gather");
  CheckMoved(input, "gather");
  const int root = static_cast<int>(opts.rootRank);
  CheckRoot("gather", root);
  const bool is_root = getRank() == root;
  const Tensors targets = is_root ? Only(outputs, "gather") : Tensors();
  TORCH_CHECK_VALUE(!is_root || targets.size() == static_cast<size_t>(getSize()),
                    "mydist: gather got ", targets.size(), " outputs, expected one for each of ",
                    getSize(), " ranks");
  // The others do not know the sizes of the root's outputs.
  const std::vector<int64_t> counts =
      is_root ? BytesOf(targets)
              : std::vector<int64_t>(static_cast<size_t>(getSize()), BytesOf(input));
  for (const at::Tensor& target : targets) CheckWritten(target, "gather");
  LaneCall call = CallOf(OpKind::kGather, input, root);
  call.count = -1;
  call.sends.resize(static_cast<size_t>(getSize()));
  call.sends[static_cast<size_t>(root)] = BytesOf(input);
  if (is_root) call.receives = counts;
  return Submit(
      {c10d::OpType::GATHER, "mydist:gather", call, opts.timeout, opts.asyncOp, {input}, targets},
      [targets, input, counts, root](const LaneSite& site) -> Status {
        const InOrder memory(targets);
        const at::Tensor own = Dense(input);
        MYDIST_ASSIGN_OR_RETURN(Collectives * bytes, site.ForBytes(OpKind::kGather));
        MYDIST_RETURN_IF_ERROR(bytes->Gather(own.const_data_ptr(), memory.data(), counts, root));
        return memory.CopyBack();
      });
}

LaneBackend::WorkPtr LaneBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions& opts) {
  const at::Tensor output = Only(outputs, "scatter");
  CheckWritten(output, "scatter");
  const int root = static_cast<int>(opts.rootRank);
  CheckRoot("scatter", root);
  const bool is_root = getRank() == root;
  const Tensors sources = is_root ? Only(inputs, "scatter") : Tensors();
  TORCH_CHECK_VALUE(!is_root || sources.size() == static_cast<size_t>(getSize()),
                    "mydist: scatter got ", sources.size(), " inputs, expected one for each of ",
                    getSize(), " ranks");
  const std::vector<int64_t> counts =
      is_root ? BytesOf(sources)
              : std::vector<int64_t>(static_cast<size_t>(getSize()), BytesOf(output));
  for (const at::Tensor& source : sources) CheckMoved(source, "scatter");
  LaneCall call = CallOf(OpKind::kScatter, output, root);
  call.count = -1;
  call.receives.resize(static_cast<size_t>(getSize()));
  call.receives[static_cast<size_t>(root)] = BytesOf(output);
  if (is_root) call.sends = counts;
  return Submit(
      {c10d::OpType::SCATTER, "mydist:scatter", call, opts.timeout, opts.asyncOp, sources, outputs},
      [output, sources, counts, root](const LaneSite& site) -> Status {
        const at::Tensor joined = Joined(sources);
        const InAndOut memory(output);
        MYDIST_ASSIGN_OR_RETURN(Collectives * bytes, site.ForBytes(OpKind::kScatter));
        const void* const from = joined.defined() ? joined.const_data_ptr() : nullptr;
        MYDIST_RETURN_IF_ERROR(bytes->Scatter(from, counts, memory.data(), root));
        return memory.CopyBack();
      });
}

LaneBackend::WorkPtr LaneBackend::ReduceAndScatter(const at::Tensor& output, Tensors inputs,
                                                   const c10d::ReduceScatterOptions& opts,
                                                   c10d::OpType type) {
  TORCH_CHECK_VALUE(inputs.size() == static_cast<size_t>(getSize()), "mydist: reduce_scatter got ",
                    inputs.size(), " inputs, expected one for each of ", getSize(), " ranks");
  const GroupReduction reduction(opts.reduceOp, output, "reduce_scatter");
  std::vector<int64_t> counts;
  for (const at::Tensor& input : inputs) {
    CheckMoved(input, "reduce_scatter");
    TORCH_CHECK_VALUE(input.scalar_type() == output.scalar_type(),
                      "mydist: reduce_scatter: inputs and output have different dtypes");
    counts.push_back(input.numel());
  }
  TORCH_CHECK_VALUE(counts[static_cast<size_t>(getRank())] == output.numel(),
                    "mydist: reduce_scatter: the output has another size than this rank's input");
  const int64_t count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  LaneCall call = reduction.Call(OpKind::kReducescatter, count);
  call.parts = UnequalParts(inputs);
  return Submit({type,
                 "mydist:reduce_scatter",
                 std::move(call),
                 opts.timeout,
                 opts.asyncOp,
                 inputs,
                 {output}},
                [output, inputs, counts, reduction](const LaneSite& site) -> Status {
                  return reduction.Reducescatter(site, Joined(inputs), counts, InAndOut(output));
                });
}

LaneBackend::WorkPtr LaneBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions& opts) {
  return ReduceAndScatter(Only(outputs, "reduce_scatter"), Only(inputs, "reduce_scatter"), opts,
                          c10d::OpType::REDUCE_SCATTER);
}

LaneBackend::WorkPtr LaneBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& opts) {
  return ReduceAndScatter(output, EqualPieces(input, getSize(), "reduce_scatter"), opts,
                          c10d::OpType::_REDUCE_SCATTER_BASE);
}

LaneBackend::WorkPtr LaneBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size() && !inputs.empty(),
                    "mydist: reduce_scatter got ", outputs.size(), " outputs for ", inputs.size(),
                    " inputs");
  WorkPtr last;
  for (size_t i = 0; i < inputs.size(); ++i) {
    last = _reduce_scatter_base(outputs[i], inputs[i], opts);
  }
  return last;
}

LaneBackend::WorkPtr LaneBackend::ExchangeAll(Tensors outputs, Tensors inputs,
                                              const c10d::AllToAllOptions& opts,
                                              c10d::OpType type) {
  const auto size = static_cast<size_t>(getSize());
  TORCH_CHECK_VALUE(outputs.size() == size && inputs.size() == size, "mydist: all_to_all got ",
                    inputs.size(), " inputs and ", outputs.size(), " outputs, expected one for ",
                    "each of ", getSize(), " ranks");
  for (const at::Tensor& tensor : inputs) CheckMoved(tensor, "all_to_all");
  for (const at::Tensor& tensor : outputs) CheckWritten(tensor, "all_to_all");
  LaneCall call = CallOf(OpKind::kAlltoall, inputs.front());
  call.count = -1;
  call.sends = BytesOf(inputs);
  call.receives = BytesOf(outputs);
  return Submit({type, "mydist:all_to_all", call, opts.timeout, opts.asyncOp, inputs, outputs},
                [outputs, inputs](const LaneSite& site) -> Status {
                  const InOrder memory(outputs);
                  at::Tensor joined = Joined(inputs);
                  for (const at::Tensor& output : outputs) {
                    if (joined.is_alias_of(output)) joined = joined.clone();  // Now it is not.
                  }
                  MYDIST_ASSIGN_OR_RETURN(Collectives * bytes, site.ForBytes(OpKind::kAlltoall));
                  MYDIST_RETURN_IF_ERROR(bytes->Alltoall(joined.const_data_ptr(), BytesOf(inputs),
                                                         memory.data(), BytesOf(outputs)));
                  return memory.CopyBack();
                });
}

LaneBackend::WorkPtr LaneBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_splits,
                                                std::vector<int64_t>& input_splits,
                                                const c10d::AllToAllOptions& opts) {
  const auto pieces = [this](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    return splits.empty() ? EqualPieces(tensor, getSize(), "all_to_all")
                          : tensor.split_with_sizes(splits);
  };
  return ExchangeAll(pieces(output, output_splits), pieces(input, input_splits), opts,
                     c10d::OpType::ALLTOALL_BASE);
}

LaneBackend::WorkPtr LaneBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions& opts) {
  return ExchangeAll(outputs, inputs, opts, c10d::OpType::ALLTOALL);
}

LaneBackend::WorkPtr LaneBackend::barrier(const c10d::BarrierOptions& opts) {
  // Members have met when they have compared their calls.
  return Submit({c10d::OpType::BARRIER, "mydist:barrier", {}, opts.timeout, opts.asyncOp, {}, {}},
                Nothing);
}

LaneBackend::WorkPtr LaneBackend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor& tensor = Only(tensors, "send");
  CheckMoved(tensor, "send");
  CheckPeer("send", peer);
  CheckProcess();
  return Note(PostOperation::Send(lane_, tensor, peer, tag));
}

LaneBackend::WorkPtr LaneBackend::ReceiveFrom(const Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = Only(tensors, "recv");
  CheckWritten(tensor, "recv");
  CheckProcess();
  return Note(PostOperation::Receive(lane_, tensor, source, tag, LimitOf(c10d::kUnsetTimeout)));
}

LaneBackend::WorkPtr LaneBackend::recv(Tensors& tensors, int source, int tag) {
  CheckPeer("recv", source);
  return ReceiveFrom(tensors, source, tag);
}

LaneBackend::WorkPtr LaneBackend::recvAnysource(Tensors& tensors, int tag) {
  return ReceiveFrom(tensors, LanePosts::kAnySource, tag);
}

void LaneBackend::CheckRoot(const char* call, int root) const {
  TORCH_CHECK_VALUE(0 <= root && root < getSize(), "mydist: ", call, " got root ", root,
                    ", expected a rank of the group, below ", getSize());
}

void LaneBackend::CheckPeer(const char* call, int peer) const {
  TORCH_CHECK_VALUE(0 <= peer && peer < getSize() && peer != getRank(), "mydist: ", call,
                    " got rank ", peer, " of the group, expected another rank below ", getSize());
}

}  // namespace mydist
