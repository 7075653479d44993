#include "runtime/executor.h"

#include <string>
#include <utility>

#include "ops/slices.h"
#include "ops/subset_transport.h"

namespace mydist {
namespace {

int64_t ElementCount(const Shape& shape) {
  // Checked when the request was made: csrc/torch only makes shapes of real tensors, and peers'
  // requests have been compared with ours.
  const std::optional<int64_t> count = shape.ElementCount();
  MYDIST_CHECK(count.has_value());
  return *count;
}

Reduction ReductionOf(const Request& request) {
  return Reduction{.dtype = request.dtype,
                   .op = request.reduce_op,
                   .prescale = request.prescale,
                   .postscale = request.postscale};
}

BatchTensor InputAndOutput(const AgreedTensor& tensor) {
  const Submission& submission = tensor.pending->submission;
  return {submission.input, submission.output, ElementCount(submission.request.shape)};
}

std::vector<int64_t> Times(std::vector<int64_t> values, int64_t factor) {
  for (int64_t& value : values) value *= factor;
  return values;
}

int64_t RowBytes(const Request& request) {
  return request.shape.RowElementCount() * SizeOf(request.dtype);
}

// The index of a rank that is a member: the ProcessSetTable has made sure of it.
int IndexIn(const ProcessSet& set, int rank) {
  const std::optional<int> index = set.IndexOf(rank);
  MYDIST_CHECK(index.has_value());
  return *index;
}

}  // namespace

Executor::Executor(const Topology& topology, Transport* transport, CollectivesFactory factory,
                   MemorySource fusion_memory)
    : rank_(topology.rank),
      transport_(transport),
      factory_(std::move(factory)),
      fusion_buffer_(std::move(fusion_memory)) {
  Team& global = teams_[kGlobalProcessSet];
  global.set = GlobalProcessSet(topology.size);
  global.index = rank_;
  global.collectives = factory_(transport_, global.set.ranks);
}

void Executor::AddProcessSet(const ProcessSet& set) {
  const std::optional<int> index = set.IndexOf(rank_);
  if (!index) return;
  Team team{.set = set, .index = *index, .transport = nullptr, .collectives = {}};
  if (transport_ != nullptr) {
    team.transport = std::make_unique<SubsetTransport>(transport_, set.ranks);
  }
  team.collectives = factory_(team.transport.get(), set.ranks);
  teams_.insert_or_assign(set.id, std::move(team));
}

Status Executor::Execute(Group group, const ActivitySink& activity) {
  const auto found = teams_.find(group.front().agreement->request.process_set);
  // The engine only executes what this rank takes part in.
  MYDIST_CHECK(found != teams_.end());
  const Team& team = found->second;
  MYDIST_ASSIGN_OR_RETURN(const BatchContext context, ContextFor(team, group, activity));
  switch (group.front().agreement->request.op) {
    case OpKind::kAllreduce:
      return Allreduce(group, context);
    case OpKind::kAllgather:
      return Allgather(group, context);
    case OpKind::kBroadcast:
      return Broadcast(team, group, context);
    case OpKind::kAlltoall:
      return Alltoall(group.front(), context);
    case OpKind::kReducescatter:
      return Reducescatter(group, context);
    case OpKind::kBarrier:
      return ExecuteBarrier(context);
    case OpKind::kReduce:
      return Reduce(team, group.front(), context);
    case OpKind::kGather:
      return Gather(team, group.front(), context);
    case OpKind::kScatter:
      return Scatter(team, group.front(), context);
    case OpKind::kSendReceive:
      return SendReceive(team, group.front(), context);
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      break;  // The engine's own business.
  }
  return Status::Internal("unknown collective");
}

Collectives* Executor::Choose(const Team& team, const BatchTraits& traits) {
  for (const auto& collectives : team.collectives) {
    if (collectives->Supports(traits)) return collectives.get();
  }
  return nullptr;
}

Collectives* Executor::ReducerOf(int64_t bytes) const {
  return Choose(teams_.at(kGlobalProcessSet), {.op = OpKind::kAllreduce,
                                               .dtype = DataType::kFloat32,
                                               .reduce_op = ReduceOp::kSum,
                                               .device = kCpuDevice,
                                               .bytes = bytes});
}

Result<BatchContext> Executor::ContextFor(const Team& team, Group group,
                                          const ActivitySink& activity) {
  const Request& request = group.front().agreement->request;
  BatchTraits traits{.op = request.op,
                     .dtype = request.dtype,
                     .reduce_op = request.reduce_op,
                     .device = request.device,
                     .bytes = 0};
  for (const AgreedTensor& tensor : group) {
    traits.bytes += ElementCount(tensor.pending->submission.request.shape) * SizeOf(request.dtype);
  }
  if (Collectives* const chosen = Choose(team, traits)) {
    return BatchContext{team.index,      team.set.size(), chosen,
                        &fusion_buffer_, activity,        &pack_bytes_};
  }
  return Status::Internal("no backend of this job can run " + std::string(OpKindName(request.op)) +
                          " of " + std::string(DataTypeName(request.dtype)) + " on device " +
                          std::to_string(request.device));
}

Status Executor::Allreduce(Group group, const BatchContext& context) {
  std::vector<BatchTensor> tensors;
  tensors.reserve(group.size());
  for (const AgreedTensor& tensor : group) tensors.push_back(InputAndOutput(tensor));
  return ExecuteAllreduce(tensors, ReductionOf(group.front().agreement->request), context);
}

Status Executor::Allgather(Group group, const BatchContext& context) {
  std::vector<GatherTensor> tensors;
  tensors.reserve(group.size());
  for (const AgreedTensor& tensor : group) {
    const Submission& submission = tensor.pending->submission;
    const std::vector<int64_t>& rows = tensor.agreement->first_dims;
    MYDIST_ASSIGN_OR_RETURN(
        void* output, submission.allocate(submission.request.shape.WithFirstDim(Total(rows))));
    tensors.push_back({submission.input, output, Times(rows, RowBytes(submission.request))});
  }
  return ExecuteAllgather(tensors, context);
}

Status Executor::Broadcast(const Team& team, Group group, const BatchContext& context) {
  const Request& request = group.front().agreement->request;
  std::vector<BatchTensor> tensors;
  tensors.reserve(group.size());
  for (const AgreedTensor& tensor : group) tensors.push_back(InputAndOutput(tensor));
  return ExecuteBroadcast(tensors, SizeOf(request.dtype), IndexIn(team.set, request.root_rank),
                          context);
}

Status Executor::Alltoall(const AgreedTensor& tensor, const BatchContext& context) {
  const Submission& submission = tensor.pending->submission;
  AlltoallTensor alltoall;
  alltoall.input = submission.input;
  alltoall.row_bytes = RowBytes(submission.request);
  alltoall.send_rows = submission.splits;
  alltoall.allocate = [&](std::span<const int64_t> receive_rows) -> Result<void*> {
    if (submission.on_numbers) {
      submission.on_numbers({receive_rows.begin(), receive_rows.end()});
    }
    return submission.allocate(submission.request.shape.WithFirstDim(Total(receive_rows)));
  };
  return ExecuteAlltoall(alltoall, context);
}

Status Executor::Reducescatter(Group group, const BatchContext& context) {
  std::vector<ScatterTensor> tensors;
  tensors.reserve(group.size());
  for (const AgreedTensor& tensor : group) {
    const Submission& submission = tensor.pending->submission;
    const Shape& shape = submission.request.shape;
    const std::vector<int64_t> rows = ScatterRowCounts(shape.dim(0), context.size);
    MYDIST_ASSIGN_OR_RETURN(
        void* output,
        submission.allocate(shape.WithFirstDim(rows[static_cast<size_t>(context.rank)])));
    tensors.push_back({submission.input, output, Times(rows, shape.RowElementCount())});
  }
  return ExecuteReducescatter(tensors, ReductionOf(group.front().agreement->request), context);
}

Status Executor::Reduce(const Team& team, const AgreedTensor& tensor, const BatchContext& context) {
  const Request& request = tensor.agreement->request;
  return ExecuteReduce(InputAndOutput(tensor), ReductionOf(request),
                       IndexIn(team.set, request.root_rank), context);
}

Status Executor::Gather(const Team& team, const AgreedTensor& tensor, const BatchContext& context) {
  const Submission& submission = tensor.pending->submission;
  const std::vector<int64_t>& rows = tensor.agreement->first_dims;
  const int root = IndexIn(team.set, submission.request.root_rank);
  void* output = nullptr;
  if (context.rank == root) {
    MYDIST_ASSIGN_OR_RETURN(
        output, submission.allocate(submission.request.shape.WithFirstDim(Total(rows))));
  }
  return ExecuteGather({submission.input, output, Times(rows, RowBytes(submission.request))}, root,
                       context);
}

Status Executor::Scatter(const Team& team, const AgreedTensor& tensor,
                         const BatchContext& context) {
  const Submission& submission = tensor.pending->submission;
  DealTensor deal;
  deal.input = submission.input;
  deal.row_bytes = RowBytes(submission.request);
  deal.send_rows = submission.splits;
  deal.allocate = [&](int64_t own_rows) {
    return submission.allocate(submission.request.shape.WithFirstDim(own_rows));
  };
  return ExecuteScatter(deal, IndexIn(team.set, submission.request.root_rank), context);
}

Status Executor::SendReceive(const Team& team, const AgreedTensor& tensor,
                             const BatchContext& context) {
  const std::vector<int32_t>& ranks = tensor.agreement->request.ranks;
  const BatchTensor memory = InputAndOutput(tensor);
  const int64_t bytes = memory.element_count * SizeOf(tensor.agreement->request.dtype);
  if (ranks[0] == rank_) {
    return ExecuteSend(memory.input, bytes, IndexIn(team.set, ranks[1]), context);
  }
  return ExecuteReceive(memory.output, bytes, IndexIn(team.set, ranks[0]), context);
}

}  // namespace mydist
