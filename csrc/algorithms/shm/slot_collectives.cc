#include "algorithms/shm/slot_collectives.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "kernels/element.h"
#include "kernels/reduction.h"
#include "memory/shm/stream_copy.h"

namespace mydist::shm {
namespace {

int64_t RoundsOf(int64_t count, int64_t limit) { return (count + limit - 1) / limit; }

}  // namespace

// sources_[r] = find(r) for peers; the caller sets its own.
template <typename FindSource>
void SlotCollectives::CollectSources(FindSource find) {
  sources_.clear();
  for (int rank = 0; rank < team_.size; ++rank) sources_.push_back(find(rank));
}

Status SlotCollectives::MessageAllreduce(uint8_t* data, int64_t count, const Reduction& reduction) {
  SlotSteps& steps = team_.steps();
  MYDIST_RETURN_IF_ERROR(steps.Publish(team_.peers, data, count * SizeOf(reduction.dtype)));
  CollectSources(
      [&](int rank) { return rank == team_.rank ? data : steps.MessageOf(team_.member(rank)); });
  ReduceInRankOrder(sources_, data, count, reduction);
  return Status::Ok();
}

Status SlotCollectives::OneShotAllreduce(uint8_t* data, int64_t count, const Reduction& reduction) {
  SlotSteps& steps = team_.steps();
  MYDIST_ASSIGN_OR_RETURN(uint8_t * slot, steps.Begin());
  StreamCopy(slot, data, count * SizeOf(reduction.dtype));
  MYDIST_RETURN_IF_ERROR(steps.Publish(team_.peers));
  CollectSources([&](int rank) { return rank == team_.rank ? data : team_.SlotOf(rank); });
  ReduceInRankOrder(sources_, data, count, reduction);
  steps.Finish(team_.peers);
  return Status::Ok();
}

// A step hands in one chunk and says that the slices of the chunk before are folded: one wait for
// both. Slices are folded in place, in every slot, so that who has read a line also writes it: a
// line that its reader leaves clean must be taken away from it, one after the other, before its
// owner can write it again, which costs ten times as much.
Status SlotCollectives::TwoShotAllreduce(uint8_t* data, int64_t count, const Reduction& reduction) {
  SlotSteps& steps = team_.steps();
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const int64_t limit = ChunkLimit(element_bytes);
  Chunk before{};
  for (int64_t begin = 0; begin < count || before.count > 0; begin += limit) {
    const int64_t left = std::max<int64_t>(0, count - begin);
    Chunk chunk{data + std::min(begin, count) * element_bytes, std::min(left, limit), element_bytes,
                nullptr};
    MYDIST_ASSIGN_OR_RETURN(chunk.slot, steps.Begin());
    CopyOthersSlices(chunk.slot, chunk.data, chunk);
    MYDIST_RETURN_IF_ERROR(steps.Publish(team_.peers));
    if (before.count > 0) CopyOthersSlices(before.data, before.slot, before);
    FoldOwnSlice(chunk, reduction);
    before = chunk;
  }
  return Status::Ok();
}

int64_t SlotCollectives::ChunkLimit(int64_t element_bytes) const {
  return std::min(team_.steps().slot_bytes(), kChunkBytes) / element_bytes;
}

Slice SlotCollectives::SliceOf(const Chunk& chunk, int rank) const {
  return EvenSlice(chunk.count, chunk.element_bytes, team_.size, rank);
}

// All but the own slice: folded where the tensor is, it needs no copy either way.
void SlotCollectives::CopyOthersSlices(uint8_t* to, const uint8_t* from, const Chunk& chunk) const {
  const Slice own = SliceOf(chunk, team_.rank);
  const int64_t begin = own.offset * chunk.element_bytes;
  const int64_t end = begin + own.count * chunk.element_bytes;
  CopyBytes(to, from, begin);
  CopyBytes(to + end, from + end, chunk.count * chunk.element_bytes - end);
}

void SlotCollectives::FoldOwnSlice(const Chunk& chunk, const Reduction& reduction) {
  const Slice own = SliceOf(chunk, team_.rank);
  if (own.count == 0) return;
  const int64_t offset = own.offset * chunk.element_bytes;
  outputs_.clear();
  for (int rank = 0; rank < team_.size; ++rank) {
    outputs_.push_back((rank == team_.rank ? chunk.data : team_.SlotOf(rank)) + offset);
  }
  CollectSources([&](int rank) { return outputs_[static_cast<size_t>(rank)]; });
  ReduceInRankOrder(sources_, outputs_, own.count, reduction);
}

Status SlotCollectives::Allgather(const void* input, void* output,
                                  std::span<const int64_t> byte_counts) {
  SlotSteps& steps = team_.steps();
  const int64_t limit = steps.slot_bytes();
  const int64_t longest = *std::max_element(byte_counts.begin(), byte_counts.end());
  const int64_t own_bytes = byte_counts[static_cast<size_t>(team_.rank)];
  for (int64_t begin = 0; begin < longest; begin += limit) {
    const auto part = [&](int64_t bytes) { return std::clamp<int64_t>(bytes - begin, 0, limit); };
    MYDIST_ASSIGN_OR_RETURN(uint8_t * slot, steps.Begin());
    StreamCopy(slot, Advance(AsBytes(input), begin), part(own_bytes));
    MYDIST_RETURN_IF_ERROR(steps.Publish(team_.peers));
    uint8_t* target = Advance(AsBytes(output), begin);
    for (int rank = 0; rank < team_.size; ++rank) {
      const int64_t theirs = byte_counts[static_cast<size_t>(rank)];
      if (rank != team_.rank) CopyBytes(target, team_.SlotOf(rank), part(theirs));
      target = Advance(target, theirs);
    }
    steps.Finish(team_.peers);
  }
  return Status::Ok();
}

Status SlotCollectives::Broadcast(void* data, int64_t bytes, int root) {
  SlotSteps& steps = team_.steps();
  const int64_t limit = steps.slot_bytes();
  for (int64_t begin = 0; begin < bytes; begin += limit) {
    uint8_t* part = AsBytes(data) + begin;
    const int64_t part_bytes = std::min(limit, bytes - begin);
    MYDIST_ASSIGN_OR_RETURN(uint8_t * slot, steps.Begin());
    if (team_.rank == root) StreamCopy(slot, part, part_bytes);
    MYDIST_RETURN_IF_ERROR(steps.Publish(team_.peers));
    if (team_.rank != root) CopyBytes(part, team_.SlotOf(root), part_bytes);
    steps.Finish(team_.peers);
  }
  return Status::Ok();
}

// A slot holds a part for each rank, all equally far apart.
Status SlotCollectives::Reducescatter(const void* input, void* output,
                                      std::span<const int64_t> counts, const Reduction& reduction) {
  SlotSteps& steps = team_.steps();
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const int64_t stride_bytes = steps.slot_bytes() / team_.size / kLineBytes * kLineBytes;
  MYDIST_CHECK(stride_bytes > 0);
  const int64_t limit = stride_bytes / element_bytes;
  const int64_t rounds = RoundsOf(*std::max_element(counts.begin(), counts.end()), limit);
  for (int64_t round = 0; round < rounds; ++round) {
    MYDIST_ASSIGN_OR_RETURN(uint8_t * slot, steps.Begin());
    Slice own;
    int64_t offset = 0;
    for (int rank = 0; rank < team_.size; ++rank) {
      const int64_t count = counts[static_cast<size_t>(rank)];
      const Slice part = RoundOf({offset, count}, limit, round);
      if (rank == team_.rank) {
        own = part;
      } else {
        StreamCopy(slot + rank * stride_bytes, Advance(AsBytes(input), part.offset * element_bytes),
                   part.count * element_bytes);
      }
      offset += count;
    }
    MYDIST_RETURN_IF_ERROR(steps.Publish(team_.peers));
    if (own.count > 0) {
      CollectSources([&](int rank) {
        return rank == team_.rank ? AsBytes(input) + own.offset * element_bytes
                                  : team_.SlotOf(rank) + team_.rank * stride_bytes;
      });
      ReduceInRankOrder(sources_, AsBytes(output) + round * limit * element_bytes, own.count,
                        reduction);
    }
    steps.Finish(team_.peers);
  }
  return Status::Ok();
}

}  // namespace mydist::shm
