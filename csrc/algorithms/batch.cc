#include "algorithms/batch.h"

#include <algorithm>
#include <string>

#include "base/failpoint.h"
#include "kernels/element.h"

namespace mydist {
namespace {

// Gives out blocks of changing size from consecutive places of a buffer.
template <typename Byte>
class Cursor {
 public:
  explicit Cursor(Byte* place) : place_(place) {}

  // The next `bytes` bytes; null in a null buffer.
  Byte* Take(int64_t bytes) {
    Byte* taken = place_;
    place_ = Advance(place_, bytes);
    return taken;
  }

 private:
  Byte* place_;
};

void Add(ConvertSegments& segments, void* target, const void* source, int64_t count) {
  if (count > 0 && target != source) segments.push_back({source, target, count});
}

const std::vector<int64_t>& CountsOf(const GatherTensor& tensor) { return tensor.byte_counts; }
const std::vector<int64_t>& CountsOf(const ScatterTensor& tensor) { return tensor.element_counts; }

// For every rank and tensor in the buffer's order: visitor(index of the tensor, its count).
template <typename Tensor, typename Visitor>
void VisitRankMajor(std::span<const Tensor> tensors, int size, Visitor visitor) {
  for (int rank = 0; rank < size; ++rank) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      visitor(t, CountsOf(tensors[t])[static_cast<size_t>(rank)]);
    }
  }
}

// What each rank contributes (bytes) or gets (elements) of all tensors together.
template <typename Tensor>
std::vector<int64_t> FusedCounts(std::span<const Tensor> tensors, int size) {
  std::vector<int64_t> sums(static_cast<size_t>(size), 0);
  for (const Tensor& tensor : tensors) {
    for (size_t rank = 0; rank < sums.size(); ++rank) sums[rank] += CountsOf(tensor)[rank];
  }
  return sums;
}

// FusionLayout: where each tensor of a fused batch lies in the fusion buffer (fuse). Pure. Tensors
// of one dtype lie one after the other without gaps: offsets stay multiples of the element, and a
// batch moves exactly the bytes of its tensors. What goes to or comes from several ranks lies rank
// by rank, and within a rank tensor by tensor. Pointers may be null when there is nothing to copy.
// What has to be copied is returned as segments that count bytes, unless they are to be cast.

// Bytes all tensors take together.
int64_t PackedBytes(std::span<const BatchTensor> tensors, int64_t element_bytes) {
  int64_t bytes = 0;
  for (const BatchTensor& tensor : tensors) bytes += tensor.element_count * element_bytes;
  return bytes;
}

// Where the outputs lie when they do so one after the other, as packed, and no input but of a
// tensor in place lies among them: what is not there yet goes there, and nothing has to be
// unpacked. Null when they do not, or are all empty.
void* PackedOutputs(std::span<const BatchTensor> tensors, int64_t element_bytes) {
  uint8_t* start = nullptr;
  const uint8_t* end = nullptr;
  for (const BatchTensor& tensor : tensors) {
    if (tensor.element_count == 0) continue;
    auto* const place = AsBytes(tensor.output);
    if (end != nullptr && place != end) return nullptr;
    if (start == nullptr) start = place;
    end = place + tensor.element_count * element_bytes;
  }
  // A copy to one output must not run over the input of another.
  const auto lies_among_them = [&](const BatchTensor& tensor) {
    if (tensor.element_count == 0 || tensor.input == tensor.output) return false;
    const auto* const input = AsBytes(tensor.input);
    const std::less<const uint8_t*> before;
    return before(input, end) && before(start, input + tensor.element_count * element_bytes);
  };
  return std::any_of(tensors.begin(), tensors.end(), lies_among_them) ? nullptr : start;
}

// Inputs into `fused`, and `fused` into outputs: of the wide tensors, whose segments count
// elements, or of the others.
ConvertSegments Pack(std::span<const BatchTensor> tensors, bool wide, int64_t element_bytes,
                     uint8_t* fused) {
  ConvertSegments segments;
  if (!wide) segments.reserve(tensors.size());
  Cursor target(fused);
  for (const BatchTensor& tensor : tensors) {
    const int64_t bytes = tensor.element_count * element_bytes;
    uint8_t* const place = target.Take(bytes);
    if (tensor.is_wide != wide) continue;
    Add(segments, place, tensor.input, wide ? tensor.element_count : bytes);
  }
  return segments;
}

ConvertSegments Unpack(const uint8_t* fused, int64_t element_bytes,
                       std::span<const BatchTensor> tensors, bool wide) {
  ConvertSegments segments;
  if (!wide) segments.reserve(tensors.size());
  Cursor source(fused);
  for (const BatchTensor& tensor : tensors) {
    const int64_t bytes = tensor.element_count * element_bytes;
    const uint8_t* const place = source.Take(bytes);
    if (tensor.is_wide != wide) continue;
    Add(segments, tensor.output, place, wide ? tensor.element_count : bytes);
  }
  return segments;
}

// Input to output of each tensor that is not in place.
ConvertSegments CopyToOutputs(std::span<const BatchTensor> tensors, int64_t element_bytes) {
  ConvertSegments segments;
  for (const BatchTensor& tensor : tensors) {
    Add(segments, tensor.output, tensor.input, tensor.element_count * element_bytes);
  }
  return segments;
}

// Allgather: the inputs of `rank` into its part `own` of the buffer; the whole buffer to the
// outputs.
ConvertSegments PackContribution(std::span<const GatherTensor> tensors, int rank, uint8_t* own) {
  ConvertSegments segments;
  Cursor target(own);
  for (const GatherTensor& tensor : tensors) {
    const int64_t bytes = tensor.byte_counts[static_cast<size_t>(rank)];
    Add(segments, target.Take(bytes), tensor.input, bytes);
  }
  return segments;
}

ConvertSegments UnpackGathered(const uint8_t* fused, std::span<const GatherTensor> tensors,
                               int size) {
  ConvertSegments segments;
  std::vector<Cursor<uint8_t>> outputs;
  for (const GatherTensor& tensor : tensors) outputs.emplace_back(AsBytes(tensor.output));
  Cursor source(fused);
  const auto add = [&](size_t t, int64_t bytes) {
    Add(segments, outputs[t].Take(bytes), source.Take(bytes), bytes);
  };
  VisitRankMajor(tensors, size, add);
  return segments;
}

// Reducescatter: the inputs, cut by rank; the reduced part of `rank` to the outputs.
ConvertSegments PackRankMajor(std::span<const ScatterTensor> tensors, int64_t element_bytes,
                              int size, uint8_t* fused) {
  ConvertSegments segments;
  std::vector<Cursor<const uint8_t>> inputs;
  for (const ScatterTensor& tensor : tensors) inputs.emplace_back(AsBytes(tensor.input));
  Cursor target(fused);
  const auto add = [&](size_t t, int64_t elements) {
    const int64_t bytes = elements * element_bytes;
    Add(segments, target.Take(bytes), inputs[t].Take(bytes), bytes);
  };
  VisitRankMajor(tensors, size, add);
  return segments;
}

ConvertSegments UnpackScattered(const uint8_t* reduced, int64_t element_bytes, int rank,
                                std::span<const ScatterTensor> tensors) {
  ConvertSegments segments;
  Cursor source(reduced);
  for (const ScatterTensor& tensor : tensors) {
    const int64_t bytes = tensor.element_counts[static_cast<size_t>(rank)] * element_bytes;
    Add(segments, tensor.output, source.Take(bytes), bytes);
  }
  return segments;
}

// `bytes` rounded up to the buffer's alignment.
int64_t AlignedBytes(int64_t bytes) {
  constexpr int64_t kUnit = FusionBuffer::kAlignmentBytes;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

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

// What 64-bit sizes can count.
constexpr int64_t kMostBytes = int64_t{1} << 62;

// A number of rows from a peer, "alltoall: rank 3": neither negative nor more than `bytes_left`,
// from which it is taken.
Status TakeAnnounced(const char* who, int peer, int64_t rows, int64_t row_bytes,
                     int64_t& bytes_left) {
  const int64_t unit = std::max<int64_t>(1, row_bytes);
  const int64_t most_rows = bytes_left / unit;
  if (rows < 0 || rows > most_rows) {
    return Status::Internal(std::string(who) + std::to_string(peer) + " announces " +
                            std::to_string(rows) + " rows of " + std::to_string(row_bytes) +
                            " bytes, expected 0 to " + std::to_string(most_rows) +
                            "; check that all ranks run the same build");
  }
  bytes_left -= rows * unit;
  return Status::Ok();
}

}  // namespace

void BatchContext::Begin(const char* name) const {
  if (activity) activity(name);
  if (name == kPackActivity || name == kCopyActivity) {
    PassFailpoint(FailPlace::kCopyIn);
  } else if (name == kUnpackActivity) {
    PassFailpoint(FailPlace::kCopyOut);
  } else if (name != kSplitsActivity) {
    PassFailpoint(FailPlace::kReduce);
  }
}

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
  MYDIST_RETURN_IF_ERROR(context.Copy(Pack(tensors, false, element_bytes, fused)));
  MYDIST_RETURN_IF_ERROR(context.Cast(Pack(tensors, true, element_bytes, fused),
                                      {.from = DataType::kFloat32, .to = reduction.dtype}));
  if (context.pack_bytes != nullptr) *context.pack_bytes += bytes;
  context.Begin(kReduceActivity);
  MYDIST_RETURN_IF_ERROR(AllreduceInPlace(tensors, fused, resolved, context));
  context.Begin(kUnpackActivity);
  MYDIST_RETURN_IF_ERROR(context.Copy(Unpack(fused, element_bytes, tensors, false)));
  return context.Cast(Unpack(fused, element_bytes, tensors, true),
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
    MYDIST_RETURN_IF_ERROR(context.Copy(Pack(tensors, false, element_bytes, fused)));
  }
  context.Begin(kMoveActivity);
  MYDIST_RETURN_IF_ERROR(context.collectives->Broadcast(fused, bytes, root));
  context.Begin(kUnpackActivity);
  return context.Copy(context.rank == root ? CopyToOutputs(tensors, element_bytes)
                                           : Unpack(fused, element_bytes, tensors, false));
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
  int64_t bytes_left = kMostBytes;
  for (int peer = 0; peer < context.size; ++peer) {
    MYDIST_RETURN_IF_ERROR(TakeAnnounced("alltoall: rank ", peer,
                                         receive_rows[static_cast<size_t>(peer)], tensor.row_bytes,
                                         bytes_left));
  }
  MYDIST_ASSIGN_OR_RETURN(void* output, tensor.allocate(receive_rows));
  const auto bytes_of = [&](std::vector<int64_t> rows) {
    for (int64_t& count : rows) count *= tensor.row_bytes;
    return rows;
  };
  context.Begin(kMoveActivity);
  return context.collectives->Alltoall(tensor.input, bytes_of(tensor.send_rows), output,
                                       bytes_of(receive_rows));
}

// Batch: the operations of one root; one tensor each, nothing is fused.

Status ExecuteReduce(const BatchTensor& tensor, const Reduction& reduction, int root,
                     const BatchContext& context) {
  MYDIST_RETURN_IF_ERROR(reduction.ValidateFor(OpKind::kReduce));
  context.Begin(kReduceActivity);
  return context.collectives->Reduce(tensor.input, tensor.output, tensor.element_count,
                                     reduction.Resolved(context.size), root);
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
  int64_t bytes_left = kMostBytes;
  MYDIST_RETURN_IF_ERROR(
      TakeAnnounced("scatter: root rank ", root, own_rows, tensor.row_bytes, bytes_left));
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

}  // namespace mydist
