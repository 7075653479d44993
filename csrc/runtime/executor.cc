#include "runtime/executor.h"

#include <string>
#include <utility>

#include "ops/slices.h"

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

}  // namespace

Executor::Executor(int rank, int size, std::vector<std::unique_ptr<Collectives>> collectives)
    : rank_(rank), size_(size), collectives_(std::move(collectives)) {}

Status Executor::Execute(std::span<const AgreedTensor> group, const ActivitySink& activity) {
  MYDIST_ASSIGN_OR_RETURN(const BatchContext context, ContextFor(group, activity));
  switch (group.front().agreement->request.op) {
    case OpKind::kAllreduce:
      return Allreduce(group, context);
    case OpKind::kAllgather:
      return Allgather(group, context);
    case OpKind::kBroadcast:
      return Broadcast(group, context);
    case OpKind::kAlltoall:
      return Alltoall(group.front(), context);
    case OpKind::kReducescatter:
      return Reducescatter(group, context);
    case OpKind::kBarrier:
      return ExecuteBarrier(context);
    case OpKind::kReduce:
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kSendReceive:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      break;  // Nothing submits them yet.
  }
  return Status::Internal("unknown collective");
}

Result<BatchContext> Executor::ContextFor(std::span<const AgreedTensor> group,
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
  for (const auto& collectives : collectives_) {
    if (collectives->Supports(traits)) {
      return BatchContext{rank_, size_, collectives.get(), &fusion_buffer_, activity};
    }
  }
  return Status::Internal("no backend of this job can run " + std::string(OpKindName(request.op)) +
                          " of " + std::string(DataTypeName(request.dtype)) + " on device " +
                          std::to_string(request.device));
}

Status Executor::Allreduce(std::span<const AgreedTensor> group, const BatchContext& context) {
  std::vector<BatchTensor> tensors;
  tensors.reserve(group.size());
  for (const AgreedTensor& tensor : group) tensors.push_back(InputAndOutput(tensor));
  return ExecuteAllreduce(tensors, ReductionOf(group.front().agreement->request), context);
}

Status Executor::Allgather(std::span<const AgreedTensor> group, const BatchContext& context) {
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

Status Executor::Broadcast(std::span<const AgreedTensor> group, const BatchContext& context) {
  const Request& request = group.front().agreement->request;
  std::vector<BatchTensor> tensors;
  tensors.reserve(group.size());
  for (const AgreedTensor& tensor : group) tensors.push_back(InputAndOutput(tensor));
  return ExecuteBroadcast(tensors, SizeOf(request.dtype), request.root_rank, context);
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

Status Executor::Reducescatter(std::span<const AgreedTensor> group, const BatchContext& context) {
  std::vector<ScatterTensor> tensors;
  tensors.reserve(group.size());
  for (const AgreedTensor& tensor : group) {
    const Submission& submission = tensor.pending->submission;
    const Shape& shape = submission.request.shape;
    const std::vector<int64_t> rows = ScatterRowCounts(shape.dim(0), size_);
    MYDIST_ASSIGN_OR_RETURN(
        void* output, submission.allocate(shape.WithFirstDim(rows[static_cast<size_t>(rank_)])));
    tensors.push_back({submission.input, output, Times(rows, shape.RowElementCount())});
  }
  return ExecuteReducescatter(tensors, ReductionOf(group.front().agreement->request), context);
}

}  // namespace mydist
