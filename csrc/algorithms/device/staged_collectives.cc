#include "algorithms/device/staged_collectives.h"

#include <algorithm>
#include <utility>

#include "kernels/element.h"

namespace mydist {
namespace {

// Of what a chunk holds behind its input, for any element.
constexpr int64_t kLineBytes = 64;

}  // namespace

StagedCollectives::StagedCollectives(int rank, std::unique_ptr<Collectives> inner,
                                     std::shared_ptr<StagingPipeline> pipeline)
    : rank_(rank), inner_(std::move(inner)), pipeline_(std::move(pipeline)) {}

bool StagedCollectives::Supports(const BatchTraits& traits) const {
  BatchTraits on_host = traits;
  on_host.device = -1;
  return traits.device == pipeline_->seat().device->index() && inner_->Supports(on_host);
}

template <typename Exchange>
Status StagedCollectives::RunEven(const EvenTensor& tensor, Exchange exchange) {
  const int chunk_count = CountChunks(tensor.count * tensor.element_bytes);
  const auto slice_of = [&](int chunk) {
    return EvenSlice(tensor.count, tensor.element_bytes, chunk_count, chunk);
  };
  const auto add = [&](int chunk, auto* memory, auto& copies) {
    if (memory == nullptr) return;
    const Slice slice = slice_of(chunk);
    copies.Add(memory + slice.offset * tensor.element_bytes, 0, slice.count * tensor.element_bytes);
  };
  if (chunk_count == 0) return Status::Ok();
  return pipeline_->Run(
      {.chunk_count = chunk_count,
       .chunk_bytes = slice_of(0).count * tensor.element_bytes,
       .inputs = [&](int chunk, ChunkInputs& inputs) { add(chunk, tensor.input, inputs); },
       .exchange = [&](int chunk,
                       uint8_t* staged) { return exchange(staged, slice_of(chunk).count); },
       .outputs = [&](int chunk, ChunkOutputs& outputs) { add(chunk, tensor.output, outputs); }});
}

template <typename Exchange>
Status StagedCollectives::RunWhole(const WholeTensor& tensor, Exchange exchange) {
  const int64_t output_begin =
      tensor.output_bytes == 0 ? 0
                               : (tensor.input_bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  return pipeline_->Run(
      {.chunk_count = 1,
       .chunk_bytes = std::max(tensor.input_bytes, output_begin + tensor.output_bytes),
       .inputs = [&](int, ChunkInputs& inputs) { inputs.Add(tensor.input, 0, tensor.input_bytes); },
       .exchange = [&](int,
                       uint8_t* staged) { return exchange(staged, Advance(staged, output_begin)); },
       .outputs =
           [&](int, ChunkOutputs& outputs) {
             outputs.Add(tensor.output, output_begin, tensor.output_bytes);
           }});
}

Status StagedCollectives::Allreduce(void* data, int64_t count, const Reduction& reduction) {
  return RunEven({AsBytes(data), AsBytes(data), count, SizeOf(reduction.dtype)},
                 [&](uint8_t* staged, int64_t chunk_count) {
                   return inner_->Allreduce(staged, chunk_count, reduction);
                 });
}

Status StagedCollectives::Reduce(const void* input, void* output, int64_t count,
                                 const Reduction& reduction, int root) {
  uint8_t* target = rank_ == root ? AsBytes(output) : nullptr;
  return RunEven({AsBytes(input), target, count, SizeOf(reduction.dtype)},
                 [&](uint8_t* staged, int64_t chunk_count) {
                   return inner_->Reduce(staged, rank_ == root ? staged : nullptr, chunk_count,
                                         reduction, root);
                 });
}

Status StagedCollectives::Broadcast(void* data, int64_t bytes, int root) {
  const bool is_root = rank_ == root;
  return RunEven({is_root ? AsBytes(data) : nullptr, is_root ? nullptr : AsBytes(data), bytes, 1},
                 [&](uint8_t* staged, int64_t chunk_bytes) {
                   return inner_->Broadcast(staged, chunk_bytes, root);
                 });
}

Status StagedCollectives::Send(const void* data, int64_t bytes, int peer) {
  return RunEven({AsBytes(data), nullptr, bytes, 1}, [&](uint8_t* staged, int64_t chunk_bytes) {
    return inner_->Send(staged, chunk_bytes, peer);
  });
}

Status StagedCollectives::Receive(void* data, int64_t bytes, int peer) {
  return RunEven({nullptr, AsBytes(data), bytes, 1}, [&](uint8_t* staged, int64_t chunk_bytes) {
    return inner_->Receive(staged, chunk_bytes, peer);
  });
}

// What a tensor becomes depends on all of it, and on nothing else.
Status StagedCollectives::AdasumAllreduce(void* data, std::span<const int64_t> counts,
                                          const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const int64_t bytes = Total(counts) * element_bytes;
  if (bytes == 0) return Status::Ok();
  GroupTensors(counts, element_bytes, bytes / CountChunks(bytes), groups_);
  int64_t largest = 0;
  for (const TensorGroup& group : groups_) largest = std::max(largest, group.elements.count);
  const auto add = [&](int chunk, auto* memory, auto& copies) {
    const Slice elements = groups_[static_cast<size_t>(chunk)].elements;
    copies.Add(memory + elements.offset * element_bytes, 0, elements.count * element_bytes);
  };
  const uint8_t* source = AsBytes(data);
  return pipeline_->Run(
      {.chunk_count = static_cast<int>(groups_.size()),
       .chunk_bytes = largest * element_bytes,
       .inputs = [&](int chunk, ChunkInputs& inputs) { add(chunk, source, inputs); },
       .exchange =
           [&](int chunk, uint8_t* staged) {
             const TensorGroup& group = groups_[static_cast<size_t>(chunk)];
             return inner_->AdasumAllreduce(staged, counts.subspan(group.first, group.tensor_count),
                                            reduction);
           },
       .outputs = [&](int chunk, ChunkOutputs& outputs) { add(chunk, AsBytes(data), outputs); }});
}

const std::vector<ChunkPiece>& StagedCollectives::Cut(std::span<const int64_t> counts,
                                                      int64_t element_bytes, int chunk_count,
                                                      int chunk) {
  CutParts(counts, element_bytes, chunk_count, chunk, pieces_);
  return pieces_;
}

std::span<const int64_t> StagedCollectives::PieceCounts() {
  piece_counts_.clear();
  for (const ChunkPiece& piece : pieces_) piece_counts_.push_back(piece.count);
  return piece_counts_;
}

int64_t StagedCollectives::LargestChunk(std::span<const int64_t> counts, int64_t element_bytes,
                                        int chunk_count) {
  const ChunkPiece& last = Cut(counts, element_bytes, chunk_count, 0).back();
  return (last.staged_offset + last.count) * element_bytes;
}

template <typename Exchange>
Status StagedCollectives::RunGathering(const uint8_t* input, uint8_t* output,
                                       std::span<const int64_t> byte_counts, Exchange exchange) {
  const int chunk_count = CountChunks(Total(byte_counts));
  if (chunk_count == 0) return Status::Ok();
  const bool in_place = output != nullptr && input == output + OffsetOf(byte_counts, rank_);
  const auto own = static_cast<size_t>(rank_);
  return pipeline_->Run(
      {.chunk_count = chunk_count,
       .chunk_bytes = LargestChunk(byte_counts, 1, chunk_count),
       .inputs =
           [&](int chunk, ChunkInputs& inputs) {
             const ChunkPiece& piece = Cut(byte_counts, 1, chunk_count, chunk)[own];
             inputs.Add(Advance(input, piece.part_offset), piece.staged_offset, piece.count);
           },
       .exchange =
           [&](int chunk, uint8_t* staged) {
             const ChunkPiece& piece = Cut(byte_counts, 1, chunk_count, chunk)[own];
             return exchange(staged + piece.staged_offset, staged, PieceCounts());
           },
       .outputs =
           [&](int chunk, ChunkOutputs& outputs) {
             if (output == nullptr) return;
             for (const ChunkPiece& piece : Cut(byte_counts, 1, chunk_count, chunk)) {
               if (in_place && piece.rank == rank_) continue;
               outputs.Add(output + piece.tensor_offset, piece.staged_offset, piece.count);
             }
           }});
}

Status StagedCollectives::Allgather(const void* input, void* output,
                                    std::span<const int64_t> byte_counts) {
  return RunGathering(
      AsBytes(input), AsBytes(output), byte_counts,
      [&](uint8_t* staged_own, uint8_t* staged, std::span<const int64_t> piece_bytes) {
        return inner_->Allgather(staged_own, staged, piece_bytes);
      });
}

Status StagedCollectives::Gather(const void* input, void* output,
                                 std::span<const int64_t> byte_counts, int root) {
  const bool is_root = rank_ == root;
  return RunGathering(
      AsBytes(input), is_root ? AsBytes(output) : nullptr, byte_counts,
      [&](uint8_t* staged_own, uint8_t* staged, std::span<const int64_t> piece_bytes) {
        return inner_->Gather(staged_own, is_root ? staged : nullptr, piece_bytes, root);
      });
}

Status StagedCollectives::Reducescatter(const void* input, void* output,
                                        std::span<const int64_t> counts,
                                        const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const int chunk_count = CountChunks(Total(counts) * element_bytes);
  if (chunk_count == 0) return Status::Ok();
  const auto own = static_cast<size_t>(rank_);
  const auto cut = [&](int chunk) -> const std::vector<ChunkPiece>& {
    return Cut(counts, element_bytes, chunk_count, chunk);
  };
  return pipeline_->Run(
      {.chunk_count = chunk_count,
       .chunk_bytes = LargestChunk(counts, element_bytes, chunk_count),
       .inputs =
           [&](int chunk, ChunkInputs& inputs) {
             for (const ChunkPiece& piece : cut(chunk)) {
               inputs.Add(AsBytes(input) + piece.tensor_offset * element_bytes,
                          piece.staged_offset * element_bytes, piece.count * element_bytes);
             }
           },
       .exchange =
           [&](int chunk, uint8_t* staged) {
             uint8_t* staged_own = staged + cut(chunk)[own].staged_offset * element_bytes;
             return inner_->Reducescatter(staged, staged_own, PieceCounts(), reduction);
           },
       .outputs =
           [&](int chunk, ChunkOutputs& outputs) {
             const ChunkPiece& piece = cut(chunk)[own];
             outputs.Add(Advance(AsBytes(output), piece.part_offset * element_bytes),
                         piece.staged_offset * element_bytes, piece.count * element_bytes);
           }});
}

Status StagedCollectives::Scatter(const void* input, std::span<const int64_t> byte_counts,
                                  void* output, int root) {
  const int64_t input_bytes = rank_ == root ? Total(byte_counts) : 0;
  const int64_t own_bytes = byte_counts[static_cast<size_t>(rank_)];
  return RunWhole({AsBytes(input), input_bytes, AsBytes(output), own_bytes},
                  [&](uint8_t* staged_input, uint8_t* staged_output) {
                    return inner_->Scatter(staged_input, byte_counts, staged_output, root);
                  });
}

Status StagedCollectives::Alltoall(const void* input, std::span<const int64_t> send_bytes,
                                   void* output, std::span<const int64_t> receive_bytes) {
  return RunWhole({AsBytes(input), Total(send_bytes), AsBytes(output), Total(receive_bytes)},
                  [&](uint8_t* staged_input, uint8_t* staged_output) {
                    return inner_->Alltoall(staged_input, send_bytes, staged_output, receive_bytes);
                  });
}

bool LoneCollectives::Supports(const BatchTraits& traits) const {
  const Reduction reduction{.dtype = traits.dtype, .op = traits.reduce_op};
  return traits.device >= 0 && (!Reduces(traits.op) || reduction.ValidateFor(traits.op).ok());
}

Status LoneCollectives::Move(const void* input, void* output, int64_t bytes) {
  if (input == output || bytes == 0) return Status::Ok();
  return seat_.device->Copy(output, input, bytes, seat_.stream);
}

// The factor before the fold and the one after it round one after the other; between the two
// 16-bit floats are as wide as while they are folded.
Status LoneCollectives::Scale(const void* input, void* output, int64_t count,
                              const Reduction& reduction) {
  const DataType dtype = reduction.dtype;
  const Factor before{.multiplier = reduction.prescale};
  const Factor after{.multiplier = reduction.postscale, .divisor = reduction.divisor};
  if (count == 0) return Status::Ok();
  if (before.IsOne() && after.IsOne()) return Move(input, output, count * SizeOf(dtype));
  const auto convert = [&](const void* from, void* to, const Conversion& conversion) {
    const ConvertSegment segment{from, to, count};
    return seat_.device->Convert({&segment, 1}, conversion, seat_.stream);
  };
  if (before.IsOne() || after.IsOne()) {
    return convert(input, output, {dtype, dtype, before.IsOne() ? after : before});
  }
  const bool is_half = dtype == DataType::kFloat16 || dtype == DataType::kBfloat16;
  const DataType wide = is_half ? DataType::kFloat32 : dtype;
  void* between = output;
  if (is_half) {
    MYDIST_ASSIGN_OR_RETURN(between, scratch_.Reserve(count * SizeOf(wide)));
  }
  MYDIST_RETURN_IF_ERROR(convert(input, between, {dtype, wide, before}));
  return convert(between, output, {wide, dtype, after});
}

}  // namespace mydist
