#include "algorithms/batch.h"

#include <algorithm>
#include <string>

#include "algorithms/fusion_layout.h"
#include "kernels/element.h"

namespace mydist {

namespace {

// Whether any is; kInvalidArgument when they cannot be reduced as `dtype`.
Result<bool> FindWide(std::span<const BatchTensor> tensors, DataType dtype) {
  const auto is_wide = [](const BatchTensor& tensor) { return tensor.is_wide; };
  const bool has_wide = std::any_of(tensors.begin(), tensors.end(), is_wide);
  if (has_wide && dtype != DataType::kFloat16 && dtype != DataType::kBfloat16) {
    return Status::InvalidArgument("compression of float32 to " + std::string(DataTypeName(dtype)) +
                                   " is not supported, expected float16 or bfloat16");
  }
  return has_wide;
}

// `data` holds all tensors one after the other.
Status AllreduceInPlace(std::span<const BatchTensor> tensors, void* data,
                        const Reduction& reduction, const BatchContext& context) {
  if (reduction.op != ReduceOp::kAdasum) {
    int64_t count = 0;
    for (const BatchTensor& tensor : tensors) count += tensor.element_count;
    return context.collectives->Allreduce(data, count, reduction);
  }
  std::vector<int64_t> counts;
  counts.reserve(tensors.size());
  for (const BatchTensor& tensor : tensors) counts.push_back(tensor.element_count);
  return context.collectives->AdasumAllreduce(data, counts, reduction);
}

// `outputs`: of all tensors, one after the other. One copy of what is not in place, be it on a GPU
// of how many tensors it may.
Status AllreduceInOutputs(std::span<const BatchTensor> tensors, void* outputs,
                          const Reduction& reduction, const BatchContext& context) {
  const ConvertSegments copies = CopyToOutputs(tensors, SizeOf(reduction.dtype));
  if (!copies.empty()) context.Begin(kCopyActivity);
  MYDIST_RETURN_IF_ERROR(context.Copy(copies));
  context.Begin(kReduceActivity);
  return AllreduceInPlace(tensors, outputs, reduction, context);
}

Status BroadcastOne(const BatchTensor& tensor, int64_t element_bytes, int root,
                    const BatchContext& context) {
  if (context.rank == root && tensor.input != tensor.output) {
    context.Begin(kCopyActivity);
    MYDIST_RETURN_IF_ERROR(context.Copy(CopyToOutputs({&tensor, 1}, element_bytes)));
  }
  context.Begin(kMoveActivity);
  return context.collectives->Broadcast(tensor.output, tensor.element_count * element_bytes, root);
}

// Numbers from peers: neither negative nor, all together, more bytes than 64-bit sizes can count.
Status CheckAnnounced(std::span<const int64_t> receive_rows, int64_t row_bytes) {
  constexpr int64_t kMostBytes = int64_t{1} << 62;
  int64_t rows_left = kMostBytes / std::max<int64_t>(1, row_bytes);
  for (size_t peer = 0; peer < receive_rows.size(); ++peer) {
    const int64_t rows = receive_rows[peer];
    if (rows < 0 || rows > rows_left) {
      return Status::Internal("alltoall: rank " + std::to_string(peer) + " announces " +
                              std::to_string(rows) + " rows of " + std::to_string(row_bytes) +
                              " bytes, expected 0 to " + std::to_string(rows_left) +
                              "; check that all ranks run the same build");
    }
    rows_left -= rows;
  }
  return Status::Ok();
}

}  // namespace

Status ExecuteAllreduce(std::span<const BatchTensor> tensors, const Reduction& reduction,
                        const BatchContext& context) {
  MYDIST_RETURN_IF_ERROR(reduction.ValidateFor(OpKind::kAllreduce));
  MYDIST_ASSIGN_OR_RETURN(const bool has_wide, FindWide(tensors, reduction.dtype));
  const Reduction resolved = reduction.Resolved(context.size);
  if (tensors.size() == 1 && !has_wide) {
    return AllreduceInOutputs(tensors, tensors[0].output, resolved, context);
  }
  const int64_t element_bytes = SizeOf(reduction.dtype);
  if (void* const packed = has_wide ? nullptr : PackedOutputs(tensors, element_bytes)) {
    return AllreduceInOutputs(tensors, packed, resolved, context);
  }
  const int64_t bytes = PackedBytes(tensors, element_bytes);
  MYDIST_ASSIGN_OR_RETURN(uint8_t * fused, context.memory->Reserve(bytes));
  context.Begin(kPackActivity);
  MYDIST_RETURN_IF_ERROR(context.Copy(Pack(tensors, element_bytes, fused)));
  MYDIST_RETURN_IF_ERROR(context.Cast(PackWide(tensors, element_bytes, fused),
                                      {.from = DataType::kFloat32, .to = reduction.dtype}));
  if (context.pack_bytes != nullptr) *context.pack_bytes += bytes;
  context.Begin(kReduceActivity);
  MYDIST_RETURN_IF_ERROR(AllreduceInPlace(tensors, fused, resolved, context));
  context.Begin(kUnpackActivity);
  MYDIST_RETURN_IF_ERROR(context.Copy(Unpack(fused, element_bytes, tensors)));
  return context.Cast(UnpackWide(fused, element_bytes, tensors),
                      {.from = reduction.dtype, .to = DataType::kFloat32});
}

Status ExecuteAllgather(std::span<const GatherTensor> tensors, const BatchContext& context) {
  if (tensors.size() == 1) {
    const GatherTensor& tensor = tensors[0];
    context.Begin(kMoveActivity);
    return context.collectives->Allgather(tensor.input, tensor.output, tensor.byte_counts);
  }
  const std::vector<int64_t> byte_counts = FusedCounts(tensors, context.size);
  MYDIST_ASSIGN_OR_RETURN(uint8_t * fused, context.memory->Reserve(Total(byte_counts)));
  context.Begin(kPackActivity);
  uint8_t* own = fused == nullptr ? nullptr : fused + OffsetOf(byte_counts, context.rank);
  MYDIST_RETURN_IF_ERROR(context.Copy(PackContribution(tensors, context.rank, own)));
  context.Begin(kMoveActivity);
  MYDIST_RETURN_IF_ERROR(context.collectives->Allgather(own, fused, byte_counts));
  context.Begin(kUnpackActivity);
  return context.Copy(UnpackGathered(fused, tensors, context.size));
}

Status ExecuteBroadcast(std::span<const BatchTensor> tensors, int64_t element_bytes, int root,
                        const BatchContext& context) {
  if (tensors.size() == 1) return BroadcastOne(tensors[0], element_bytes, root, context);
  const int64_t bytes = PackedBytes(tensors, element_bytes);
  MYDIST_ASSIGN_OR_RETURN(uint8_t * fused, context.memory->Reserve(bytes));
  if (context.rank == root) {
    context.Begin(kPackActivity);
    MYDIST_RETURN_IF_ERROR(context.Copy(Pack(tensors, element_bytes, fused)));
  }
  context.Begin(kMoveActivity);
  MYDIST_RETURN_IF_ERROR(context.collectives->Broadcast(fused, bytes, root));
  context.Begin(kUnpackActivity);
  return context.Copy(context.rank == root ? CopyToOutputs(tensors, element_bytes)
                                           : Unpack(fused, element_bytes, tensors));
}

Status ExecuteReducescatter(std::span<const ScatterTensor> tensors, const Reduction& reduction,
                            const BatchContext& context) {
  MYDIST_RETURN_IF_ERROR(reduction.ValidateFor(OpKind::kReducescatter));
  const Reduction resolved = reduction.Resolved(context.size);
  if (tensors.size() == 1) {
    const ScatterTensor& tensor = tensors[0];
    context.Begin(kReduceActivity);
    return context.collectives->Reducescatter(tensor.input, tensor.output, tensor.element_counts,
                                              resolved);
  }
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const std::vector<int64_t> counts = FusedCounts(tensors, context.size);
  const int64_t input_bytes = AlignedBytes(Total(counts) * element_bytes);
  const int64_t own_bytes = counts[static_cast<size_t>(context.rank)] * element_bytes;
  MYDIST_ASSIGN_OR_RETURN(uint8_t * fused, context.memory->Reserve(input_bytes + own_bytes));
  uint8_t* reduced = fused == nullptr ? nullptr : fused + input_bytes;
  context.Begin(kPackActivity);
  MYDIST_RETURN_IF_ERROR(context.Copy(PackRankMajor(tensors, element_bytes, context.size, fused)));
  context.Begin(kReduceActivity);
  MYDIST_RETURN_IF_ERROR(context.collectives->Reducescatter(fused, reduced, counts, resolved));
  context.Begin(kUnpackActivity);
  return context.Copy(UnpackScattered(reduced, element_bytes, context.rank, tensors));
}

// No rank knows what it will receive, so the sizes travel first.
Status ExecuteAlltoall(const AlltoallTensor& tensor, const BatchContext& context) {
  const auto size = static_cast<size_t>(context.size);
  std::vector<int64_t> receive_rows(size);
  const std::vector<int64_t> one_number(size, int64_t{sizeof(int64_t)});
  context.Begin(kSplitsActivity);
  MYDIST_RETURN_IF_ERROR(context.numbers->Alltoall(tensor.send_rows.data(), one_number,
                                                   receive_rows.data(), one_number));
  MYDIST_RETURN_IF_ERROR(CheckAnnounced(receive_rows, tensor.row_bytes));
  MYDIST_ASSIGN_OR_RETURN(void* output, tensor.allocate(receive_rows));
  const auto bytes_of = [&](std::vector<int64_t> rows) {
    for (int64_t& count : rows) count *= tensor.row_bytes;
    return rows;
  };
  context.Begin(kMoveActivity);
  return context.collectives->Alltoall(tensor.input, bytes_of(tensor.send_rows), output,
                                       bytes_of(receive_rows));
}

Status ExecuteBarrier(const BatchContext& context) {
  context.Begin(kMoveActivity);
  return context.collectives->Barrier();
}

// Batch: the operations of one root, or of two ranks; one tensor each, nothing is fused.

namespace {

// A number from the root: neither negative nor more bytes than 64-bit sizes can count.
Status CheckAnnounced(int64_t rows, int64_t row_bytes, int root) {
  constexpr int64_t kMostBytes = int64_t{1} << 62;
  const int64_t most_rows = row_bytes > 0 ? kMostBytes / row_bytes : kMostBytes;
  if (rows >= 0 && rows <= most_rows) return Status::Ok();
  return Status::Internal("scatter: root rank " + std::to_string(root) + " announces " +
                          std::to_string(rows) + " rows of " + std::to_string(row_bytes) +
                          " bytes, expected 0 to " + std::to_string(most_rows) +
                          "; check that all ranks run the same build");
}

}  // namespace

Status ExecuteReduce(const BatchTensor& tensor, const Reduction& reduction, int root,
                     const BatchContext& context) {
  MYDIST_RETURN_IF_ERROR(reduction.ValidateFor(OpKind::kReduce));
  context.Begin(kReduceActivity);
  return context.collectives->Reduce(tensor.input, tensor.output, tensor.element_count,
                                     reduction.Resolved(context.size), root);
}

Status ExecuteGather(const GatherTensor& tensor, int root, const BatchContext& context) {
  context.Begin(kMoveActivity);
  return context.collectives->Gather(tensor.input, tensor.output, tensor.byte_counts, root);
}

// Only the root knows the sizes of all parts, so the sizes travel first.
Status ExecuteScatter(const DealTensor& tensor, int root, const BatchContext& context) {
  const auto size = static_cast<size_t>(context.size);
  const auto own = static_cast<size_t>(context.rank);
  const std::vector<int64_t> one_number(size, int64_t{sizeof(int64_t)});
  int64_t own_rows = 0;
  context.Begin(kSplitsActivity);
  MYDIST_RETURN_IF_ERROR(
      context.numbers->Scatter(tensor.send_rows.data(), one_number, &own_rows, root));
  MYDIST_RETURN_IF_ERROR(CheckAnnounced(own_rows, tensor.row_bytes, root));
  MYDIST_ASSIGN_OR_RETURN(void* output, tensor.allocate(own_rows));
  std::vector<int64_t> byte_counts(size, 0);
  byte_counts[own] = own_rows * tensor.row_bytes;
  if (context.rank == root) {
    for (size_t peer = 0; peer < size; ++peer) {
      byte_counts[peer] = tensor.send_rows[peer] * tensor.row_bytes;
    }
  }
  context.Begin(kMoveActivity);
  return context.collectives->Scatter(tensor.input, byte_counts, output, root);
}

Status ExecuteSend(const void* data, int64_t bytes, int peer, const BatchContext& context) {
  context.Begin(kMoveActivity);
  return context.collectives->Send(data, bytes, peer);
}

Status ExecuteReceive(void* data, int64_t bytes, int peer, const BatchContext& context) {
  context.Begin(kMoveActivity);
  return context.collectives->Receive(data, bytes, peer);
}

}  // namespace mydist
