#include "engine/executor.h"

#include "kernels/element.h"
#include "transport/subset_transport.h"
#include "world/late_writes.h"

namespace mydist {
namespace {

int64_t ElementCount(const Shape& shape) {
  // Checked when the request was made: csrc/torch only makes shapes of real tensors, and peers'
  // requests have been compared with ours.
  const std::optional<int64_t> count = shape.ElementCount();
  MYDIST_CHECK(count.has_value());
  return *count;
}

int64_t NumberCount(const Request& request) {
  return ElementCount(request.shape) * CarrierOf(request).count;
}

BatchTensor InputAndOutput(const AgreedTensor& tensor) {
  const Submission& submission = tensor.pending->submission;
  return {.input = submission.input,
          .output = submission.output,
          .element_count = NumberCount(submission.request),
          .is_wide = submission.is_wide};
}

std::vector<BatchTensor> InputsAndOutputs(std::span<const AgreedTensor> group) {
  std::vector<BatchTensor> tensors;
  tensors.reserve(group.size());
  for (const AgreedTensor& tensor : group) tensors.push_back(InputAndOutput(tensor));
  return tensors;
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

BatchTraits Executor::TraitsOf(Group group) {
  const Request& request = group.front().agreement->request;
  const Reduction reduction = ReductionOf(request);
  BatchTraits traits{.op = request.op,
                     .dtype = reduction.dtype,
                     .reduce_op = reduction.op,
                     .device = group.front().device(),
                     .bytes = 0};
  for (const AgreedTensor& tensor : group) {
    traits.bytes += NumberCount(tensor.pending->submission.request) * SizeOf(reduction.dtype);
  }
  return traits;
}

Executor::Executor(const Topology& topology, Transport* transport, ExecutorSources sources)
    : rank_(topology.rank),
      local_rank_(topology.local_rank),
      transport_(transport),
      sources_(std::move(sources)),
      devices_(sources_.on_devices->plugin(), [this] { return News(); }),
      host_memory_(sources_.fusion_memory) {
  Team& global = teams_[kGlobalProcessSet];
  global.set = GlobalProcessSet(topology.size);
  global.index = rank_;
  global.collectives = sources_.on_host->Make(transport_, global.set.ranks);
}

void Executor::AddProcessSet(const ProcessSet& set) {
  const std::optional<int> index = set.IndexOf(rank_);
  if (!index) return;
  Team team{.set = set, .index = *index, .transport = nullptr, .collectives = {}};
  if (transport_ != nullptr) {
    team.transport = std::make_unique<SubsetTransport>(transport_, set.ranks);
  }
  team.collectives = sources_.on_host->Make(team.transport.get(), set.ranks);
  teams_.insert_or_assign(set.id, std::move(team));
}

Status Executor::Execute(Group group, const ActivitySink& activity) {
  const auto found = teams_.find(group.front().agreement->request.process_set);
  // The engine only executes what this rank takes part in.
  MYDIST_CHECK(found != teams_.end());
  const bool is_on_host = group.front().device() == kCpuDevice;
  Status status = is_on_host ? ExecuteOnHost(found->second, group, activity)
                             : ExecuteOnDevices(found->second, group, activity);
  if (status.ok()) return status;
  for (const AgreedTensor& tensor : group) {
    KeepFromLateWrites(tensor.pending->submission.keep_alive);
  }
  return status;
}

Status Executor::ExecuteOnHost(const Team& team, Group group, const ActivitySink& activity) {
  const BatchTraits traits = TraitsOf(group);
  MYDIST_ASSIGN_OR_RETURN(Collectives* const chosen, ChooseFor(traits, team.collectives));
  return Run(team, group,
             {.rank = team.index,
              .size = team.set.size(),
              .collectives = chosen,
              .numbers = chosen,
              .memory = &host_memory_,
              .activity = activity,
              .pack_bytes = &pack_bytes_});
}

Status Executor::Run(const Team& team, Group group, const BatchContext& context) {
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
      context.Begin(kMoveActivity);
      return context.collectives->Barrier();
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

Collectives* Executor::ReducerOf(int64_t bytes) const {
  const Result<Collectives*> chosen = ChooseFor({.op = OpKind::kAllreduce,
                                                 .dtype = DataType::kFloat32,
                                                 .reduce_op = ReduceOp::kSum,
                                                 .device = kCpuDevice,
                                                 .bytes = bytes},
                                                teams_.at(kGlobalProcessSet).collectives);
  return chosen.ok() ? *chosen : nullptr;
}

Status Executor::Allreduce(Group group, const BatchContext& context) {
  return ExecuteAllreduce(InputsAndOutputs(group), ReductionOf(group.front().agreement->request),
                          context);
}

Status Executor::Allgather(Group group, const BatchContext& context) {
  std::vector<GatherTensor> tensors;
  tensors.reserve(group.size());
  for (const AgreedTensor& tensor : group) {
    const Submission& submission = tensor.pending->submission;
    const std::vector<int64_t>& rows = tensor.agreement->first_dims;
    MYDIST_ASSIGN_OR_RETURN(
        void* output, Allocate(submission, submission.request.shape.WithFirstDim(Total(rows))));
    tensors.push_back({submission.input, output, Times(rows, RowBytes(submission.request))});
  }
  return ExecuteAllgather(tensors, context);
}

Status Executor::Broadcast(const Team& team, Group group, const BatchContext& context) {
  const Request& request = group.front().agreement->request;
  return ExecuteBroadcast(InputsAndOutputs(group), SizeOf(request.dtype),
                          IndexIn(team.set, request.root_rank), context);
}

Status Executor::Alltoall(const AgreedTensor& tensor, const BatchContext& context) {
  const Submission& submission = tensor.pending->submission;
  const auto allocate = [&](std::span<const int64_t> receive_rows) -> Result<void*> {
    if (submission.on_numbers) {
      submission.on_numbers({receive_rows.begin(), receive_rows.end()});
    }
    return Allocate(submission, submission.request.shape.WithFirstDim(Total(receive_rows)));
  };
  return ExecuteAlltoall(
      {submission.input, RowBytes(submission.request), submission.splits, allocate}, context);
}

Status Executor::Reducescatter(Group group, const BatchContext& context) {
  std::vector<ScatterTensor> tensors;
  tensors.reserve(group.size());
  for (const AgreedTensor& tensor : group) {
    const Submission& submission = tensor.pending->submission;
    const Shape& shape = submission.request.shape;
    const int64_t row_numbers = shape.RowElementCount() * CarrierOf(submission.request).count;
    const std::vector<int64_t> rows = ScatterRowCounts(shape.dim(0), context.size);
    MYDIST_ASSIGN_OR_RETURN(
        void* output,
        Allocate(submission, shape.WithFirstDim(rows[static_cast<size_t>(context.rank)])));
    tensors.push_back({submission.input, output, Times(rows, row_numbers)});
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
        output, Allocate(submission, submission.request.shape.WithFirstDim(Total(rows))));
  }
  context.Begin(kMoveActivity);
  return context.collectives->Gather(submission.input, output,
                                     Times(rows, RowBytes(submission.request)), root);
}

Status Executor::Scatter(const Team& team, const AgreedTensor& tensor,
                         const BatchContext& context) {
  const Submission& submission = tensor.pending->submission;
  const auto allocate = [&](int64_t own_rows) {
    return Allocate(submission, submission.request.shape.WithFirstDim(own_rows));
  };
  return ExecuteScatter(
      {submission.input, RowBytes(submission.request), submission.splits, allocate},
      IndexIn(team.set, submission.request.root_rank), context);
}

Status Executor::SendReceive(const Team& team, const AgreedTensor& tensor,
                             const BatchContext& context) {
  const std::vector<int32_t>& ranks = tensor.agreement->request.ranks;
  const BatchTensor memory = InputAndOutput(tensor);
  const int64_t bytes = memory.element_count * SizeOf(tensor.agreement->request.dtype);
  context.Begin(kMoveActivity);
  if (ranks[0] == rank_) {
    return context.collectives->Send(memory.input, bytes, IndexIn(team.set, ranks[1]));
  }
  return context.collectives->Receive(memory.output, bytes, IndexIn(team.set, ranks[0]));
}

}  // namespace mydist
