#include "algorithms/shm/shm_collectives.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/status.h"
#include "memory/shm/stream_copy.h"

// Runs a direct algorithm among `peers`; goes on when the tensors cannot be reached.
#define MYDIST_RETURN_IF_DONE_AMONG(peers, expression)               \
  do {                                                               \
    const ::mydist::Result<bool> done_ = (expression);               \
    if (!done_.ok()) return direct_.Settle(done_.status(), (peers)); \
    if (*done_) return ::mydist::Status::Ok();                       \
  } while (false)
#define MYDIST_RETURN_IF_DONE(expression) MYDIST_RETURN_IF_DONE_AMONG(team_.peers, expression)

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
// both. Slices are folded in place, in every slot, so that the rank that has read a line also
// writes it: a line that its reader leaves clean must be taken away from it, one after the other,
// before its owner can write it again, which costs ten times as much.
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

ShmCollectives::ShmCollectives(ShmPort* port, std::vector<int> members, const ShmLimits& limits)
    : team_(port, std::move(members)),
      slots_(team_),
      direct_(team_),
      transport_(&port->transport(), team_.members),
      rest_(&transport_),
      limits_(limits),
      is_direct_(limits.direct && direct_.IsPossible()) {}

Status ShmCollectives::Allreduce(void* data, int64_t count, const Reduction& reduction) {
  const int64_t bytes = count * SizeOf(reduction.dtype);
  if (count == 0) return Status::Ok();
  if (team_.size == 1) return rest_.Allreduce(data, count, reduction);
  if (bytes <= limits_.message_bytes) {
    return slots_.MessageAllreduce(AsBytes(data), count, reduction);
  }
  const bool may_copy =
      bytes <= team_.steps().slot_bytes() && bytes <= limits_.one_shot_bytes / (team_.size - 1);
  if (is_direct_ && !(may_copy && IsSmall(bytes))) {
    MYDIST_RETURN_IF_DONE(direct_.Allreduce(AsBytes(data), count, reduction, may_copy));
  }
  return may_copy ? slots_.OneShotAllreduce(AsBytes(data), count, reduction)
                  : slots_.TwoShotAllreduce(AsBytes(data), count, reduction);
}

Status ShmCollectives::Reduce(const void* input, void* output, int64_t count,
                              const Reduction& reduction, int root) {
  if (is_direct_ && team_.size > 1 && !IsSmall(count * SizeOf(reduction.dtype))) {
    MYDIST_RETURN_IF_DONE(direct_.Reduce(AsBytes(input), AsBytes(output), count, reduction, root));
  }
  return rest_.Reduce(input, output, count, reduction, root);
}

Status ShmCollectives::Reducescatter(const void* input, void* output,
                                     std::span<const int64_t> counts, const Reduction& reduction) {
  if (team_.size == 1) return rest_.Reducescatter(input, output, counts, reduction);
  if (is_direct_ && !IsSmall(Total(counts) * SizeOf(reduction.dtype))) {
    MYDIST_RETURN_IF_DONE(
        direct_.Reducescatter(AsBytes(input), AsBytes(output), counts, reduction));
  }
  return slots_.Reducescatter(input, output, counts, reduction);
}

Status ShmCollectives::Allgather(const void* input, void* output,
                                 std::span<const int64_t> byte_counts) {
  CopyBytes(Advance(AsBytes(output), OffsetOf(byte_counts, team_.rank)), input,
            byte_counts[static_cast<size_t>(team_.rank)]);
  if (team_.size == 1) return Status::Ok();
  if (is_direct_ && !IsSmall(Total(byte_counts))) {
    MYDIST_RETURN_IF_DONE(direct_.Allgather(AsBytes(input), AsBytes(output), byte_counts));
  }
  return slots_.Allgather(input, output, byte_counts);
}

Status ShmCollectives::Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                              int root) {
  if (is_direct_ && team_.size > 1 && !IsSmall(Total(byte_counts))) {
    MYDIST_RETURN_IF_DONE(direct_.Gather(AsBytes(input), AsBytes(output), byte_counts, root));
  }
  return rest_.Gather(input, output, byte_counts, root);
}

// How much there is, only the root knows; so it is for Alltoall.
Status ShmCollectives::Scatter(const void* input, std::span<const int64_t> byte_counts,
                               void* output, int root) {
  if (is_direct_ && team_.size > 1) {
    MYDIST_RETURN_IF_DONE(direct_.Scatter(AsBytes(input), byte_counts, AsBytes(output), root));
  }
  return rest_.Scatter(input, byte_counts, output, root);
}

Status ShmCollectives::Send(const void* data, int64_t bytes, int peer) {
  if (is_direct_ && bytes > limits_.slot_bytes) {
    const std::array<int, 1> peers{team_.member(peer)};
    MYDIST_RETURN_IF_DONE_AMONG(peers, direct_.Send(AsBytes(data), bytes, peer));
  }
  return rest_.Send(data, bytes, peer);
}

Status ShmCollectives::Receive(void* data, int64_t bytes, int peer) {
  if (is_direct_ && bytes > limits_.slot_bytes) {
    const std::array<int, 1> peers{team_.member(peer)};
    MYDIST_RETURN_IF_DONE_AMONG(peers, direct_.Receive(AsBytes(data), bytes, peer));
  }
  return rest_.Receive(data, bytes, peer);
}

Status ShmCollectives::Broadcast(void* data, int64_t bytes, int root) {
  if (team_.size == 1 || bytes == 0) return Status::Ok();
  if (is_direct_ && !IsSmall(bytes)) {
    MYDIST_RETURN_IF_DONE(direct_.Broadcast(AsBytes(data), bytes, root));
  }
  return slots_.Broadcast(data, bytes, root);
}

Status ShmCollectives::Alltoall(const void* input, std::span<const int64_t> send_bytes,
                                void* output, std::span<const int64_t> receive_bytes) {
  if (is_direct_ && team_.size > 1) {
    MYDIST_RETURN_IF_DONE(
        direct_.Alltoall(AsBytes(input), send_bytes, AsBytes(output), receive_bytes));
  }
  return rest_.Alltoall(input, send_bytes, output, receive_bytes);
}

}  // namespace mydist::shm
