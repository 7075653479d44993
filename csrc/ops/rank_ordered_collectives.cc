#include "ops/rank_ordered_collectives.h"

#include <algorithm>

#include "ops/element.h"
#include "ops/reduce_kernels.h"

namespace mydist {
namespace {

const uint8_t* AsBytes(const void* memory) { return static_cast<const uint8_t*>(memory); }
uint8_t* AsBytes(void* memory) { return static_cast<uint8_t*>(memory); }

// Null stays null: empty tensors have no memory to point into.
template <typename Byte>
Byte* Advance(Byte* memory, int64_t bytes) {
  return memory == nullptr ? nullptr : memory + bytes;
}

}  // namespace

RankOrderedCollectives::RankOrderedCollectives(Transport* transport,
                                               const RankOrderedLimits& limits)
    : transport_(transport),
      rank_(transport == nullptr ? 0 : transport->rank()),
      size_(transport == nullptr ? 1 : transport->size()),
      limits_(limits) {}

bool RankOrderedCollectives::Supports(const BatchTraits& traits) const {
  return traits.device < 0 && (!Reduces(traits.op) || HasMeaning(traits.reduce_op, traits.dtype));
}

Status RankOrderedCollectives::Allreduce(void* data, int64_t count, const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  if (count == 0) return Status::Ok();
  if (count <= limits_.one_shot_bytes / element_bytes / std::max(1, size_ - 1)) {
    return OneShotAllreduce(AsBytes(data), count, reduction);
  }
  SplitEvenly(count, element_bytes);
  uint8_t* own_slice = AsBytes(data) + OwnSlice().offset * element_bytes;
  MYDIST_RETURN_IF_ERROR(FoldOwnSlice(AsBytes(data), own_slice, reduction));
  return GatherSlices(AsBytes(data), element_bytes);
}

Status RankOrderedCollectives::OneShotAllreduce(uint8_t* data, int64_t count,
                                                const Reduction& reduction) {
  const int64_t bytes = count * SizeOf(reduction.dtype);
  MYDIST_ASSIGN_OR_RETURN(uint8_t * room, scratch_.Reserve(bytes * (size_ - 1)));
  sources_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) {
      sources_.push_back(data);
      continue;
    }
    Send(peer, data, bytes);
    Receive(peer, room, bytes);
    sources_.push_back(room);
    room += bytes;
  }
  MYDIST_RETURN_IF_ERROR(Exchange());
  ReduceInRankOrder(sources_, data, count, reduction);
  return Status::Ok();
}

void RankOrderedCollectives::SplitEvenly(int64_t count, int64_t element_bytes) {
  slices_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    slices_.push_back(EvenSlice(count, element_bytes, size_, peer));
  }
}

// Everybody's part of our slice (slices_) is folded into `output`, in rounds that bound the scratch
// memory. `output` may be our slice of `input`: nobody else reads or writes that.
Status RankOrderedCollectives::FoldOwnSlice(const uint8_t* input, uint8_t* output,
                                            const Reduction& reduction) {
  const int64_t peers = std::max(1, size_ - 1);
  const int64_t round_bytes = std::max(limits_.scratch_bytes / peers, limits_.minimum_round_bytes);
  const int64_t limit = std::max<int64_t>(1, round_bytes / SizeOf(reduction.dtype));
  const int64_t rounds = RoundCount(slices_, limit);
  for (int64_t index = 0; index < rounds; ++index) {
    MYDIST_RETURN_IF_ERROR(FoldRound(input, output, {index, limit}, reduction));
  }
  return Status::Ok();
}

Status RankOrderedCollectives::FoldRound(const uint8_t* input, uint8_t* output, const Round& round,
                                         const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const Slice own = RoundOf(OwnSlice(), round.limit, round.index);
  const int64_t own_bytes = own.count * element_bytes;
  MYDIST_ASSIGN_OR_RETURN(uint8_t * room, scratch_.Reserve(own_bytes * (size_ - 1)));
  sources_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    const Slice theirs = RoundOf(slices_[static_cast<size_t>(peer)], round.limit, round.index);
    const uint8_t* contribution = Advance(input, theirs.offset * element_bytes);
    if (peer == rank_) {
      sources_.push_back(contribution);
      continue;
    }
    Send(peer, contribution, theirs.count * element_bytes);
    Receive(peer, room, own_bytes);
    sources_.push_back(room);
    room = Advance(room, own_bytes);
  }
  MYDIST_RETURN_IF_ERROR(Exchange());
  const int64_t done = own.offset - OwnSlice().offset;
  ReduceInRankOrder(sources_, Advance(output, done * element_bytes), own.count, reduction);
  return Status::Ok();
}

// Everybody hands out its slice (slices_) of `data`.
Status RankOrderedCollectives::GatherSlices(uint8_t* data, int64_t element_bytes) {
  const Slice own = OwnSlice();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Slice theirs = slices_[static_cast<size_t>(peer)];
    Send(peer, Advance(data, own.offset * element_bytes), own.count * element_bytes);
    Receive(peer, Advance(data, theirs.offset * element_bytes), theirs.count * element_bytes);
  }
  return Exchange();
}

Status RankOrderedCollectives::Allgather(const void* input, void* output,
                                         std::span<const int64_t> byte_counts) {
  slices_.clear();
  int64_t offset = 0;
  for (const int64_t bytes : byte_counts) {
    slices_.push_back({offset, bytes});
    offset += bytes;
  }
  const Slice own = OwnSlice();
  CopyBytes(Advance(AsBytes(output), own.offset), input, own.count);
  return GatherSlices(AsBytes(output), 1);
}

Status RankOrderedCollectives::Broadcast(void* data, int64_t bytes, int root) {
  if (size_ > 2 && bytes >= limits_.scatter_broadcast_bytes) {
    return ScatterBroadcast(AsBytes(data), bytes, root);
  }
  return BinomialBroadcast(AsBytes(data), bytes, root);
}

// Ranks are numbered from the root on; in the round with `distance` d, ranks below d pass on to
// those d further.
Status RankOrderedCollectives::BinomialBroadcast(uint8_t* data, int64_t bytes, int root) {
  const int place = (rank_ - root + size_) % size_;
  for (int64_t distance = 1; distance < size_; distance *= 2) {
    const int step = static_cast<int>(distance);
    if (place < step) {
      if (place + step < size_) Send((rank_ + step) % size_, data, bytes);
    } else if (place < 2 * distance) {
      Receive((rank_ - step + size_) % size_, data, bytes);
    }
    MYDIST_RETURN_IF_ERROR(Exchange());
  }
  return Status::Ok();
}

// The root sends every byte once; the receivers pass their slices on to each other.
Status RankOrderedCollectives::ScatterBroadcast(uint8_t* data, int64_t bytes, int root) {
  SplitAmongReceivers(bytes, root);
  if (rank_ == root) {
    for (int peer = 0; peer < size_; ++peer) {
      const Slice theirs = slices_[static_cast<size_t>(peer)];
      if (peer != root) Send(peer, data + theirs.offset, theirs.count);
    }
    return Exchange();
  }
  Receive(root, data + OwnSlice().offset, OwnSlice().count);
  MYDIST_RETURN_IF_ERROR(Exchange());
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || peer == root) continue;
    const Slice theirs = slices_[static_cast<size_t>(peer)];
    Send(peer, data + OwnSlice().offset, OwnSlice().count);
    Receive(peer, data + theirs.offset, theirs.count);
  }
  return Exchange();
}

void RankOrderedCollectives::SplitAmongReceivers(int64_t bytes, int root) {
  slices_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    const int receiver = peer < root ? peer : peer - 1;
    slices_.push_back(peer == root ? Slice{} : EvenSlice(bytes, 1, size_ - 1, receiver));
  }
}

Status RankOrderedCollectives::Alltoall(const void* input, std::span<const int64_t> send_bytes,
                                        void* output, std::span<const int64_t> receive_bytes) {
  const uint8_t* source = AsBytes(input);
  uint8_t* target = AsBytes(output);
  for (int peer = 0; peer < size_; ++peer) {
    const int64_t outgoing = send_bytes[static_cast<size_t>(peer)];
    const int64_t incoming = receive_bytes[static_cast<size_t>(peer)];
    if (peer == rank_) {
      CopyBytes(target, source, outgoing);
    } else {
      Send(peer, source, outgoing);
      Receive(peer, target, incoming);
    }
    source = Advance(source, outgoing);
    target = Advance(target, incoming);
  }
  return Exchange();
}

Status RankOrderedCollectives::Reducescatter(const void* input, void* output,
                                             std::span<const int64_t> counts,
                                             const Reduction& reduction) {
  slices_.clear();
  int64_t offset = 0;
  for (const int64_t count : counts) {
    slices_.push_back({offset, count});
    offset += count;
  }
  return FoldOwnSlice(AsBytes(input), AsBytes(output), reduction);
}

// Dissemination: after the round with `distance` d, a rank knows that the 2 d - 1 ranks before it
// have come.
Status RankOrderedCollectives::Barrier() {
  uint8_t token_out = 1;
  uint8_t token_in = 0;
  for (int64_t distance = 1; distance < size_; distance *= 2) {
    const int step = static_cast<int>(distance);
    Send((rank_ + step) % size_, &token_out, 1);
    Receive((rank_ - step + size_) % size_, &token_in, 1);
    MYDIST_RETURN_IF_ERROR(Exchange());
  }
  return Status::Ok();
}

void RankOrderedCollectives::Send(int peer, const uint8_t* data, int64_t bytes) {
  if (bytes > 0) sends_.push_back({peer, data, bytes});
}

void RankOrderedCollectives::Receive(int peer, uint8_t* data, int64_t bytes) {
  if (bytes > 0) receives_.push_back({peer, data, bytes});
}

Status RankOrderedCollectives::Exchange() {
  if (sends_.empty() && receives_.empty()) return Status::Ok();
  const Status status = transport_->Exchange(sends_, receives_);
  sends_.clear();
  receives_.clear();
  return status;
}

}  // namespace mydist
