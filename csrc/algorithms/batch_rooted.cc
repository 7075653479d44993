// Batch: the operations of one root, or of two ranks; one tensor each, nothing is fused.
#include <string>

#include "algorithms/batch.h"

namespace mydist {
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

// Only the root knows what everybody gets, so the numbers travel first.
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
