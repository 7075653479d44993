#include "algorithms/rank_ordered_collectives.h"

#include <algorithm>

namespace mydist {
namespace {

constexpr int64_t kTileBytes = 4096;

// Contributions of peers lie one after the other, in the order of ranks and without our own, each
// at a multiple of this: whole words for the widest access.
constexpr int64_t kAlignmentBytes = 64;

int64_t StrideOf(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

int64_t OffsetOf(int peer, int rank, int64_t stride) {
  return (peer < rank ? peer : peer - 1) * stride;
}

}  // namespace

HostOrderedFold::HostOrderedFold(const HostGroups& groups)
    : members_(groups.HasTwoLevels() ? groups.members : std::vector<std::vector<int>>()) {}

Status HostOrderedFold::Fold(std::span<const void* const> sources, void* output, int64_t count,
                             const Reduction& whole) {
  if (members_.empty()) {
    ReduceInRankOrder(sources, output, count, whole);
    return Status::Ok();
  }
  const TwoLevelReduction reduction(whole);
  const auto tiles = static_cast<int64_t>(members_.size() + sources.size());
  MYDIST_ASSIGN_OR_RETURN(uint8_t * room, tiles_.Reserve(tiles * kTileBytes));
  sources_.clear();
  for (const std::vector<int>& members : members_) {
    for (const int rank : members) sources_.push_back(AsBytes(sources[static_cast<size_t>(rank)]));
  }
  const int64_t limit = kTileBytes / reduction.partial_bytes();
  for (int64_t begin = 0; begin < count; begin += limit) {
    FoldTile({begin, std::min(limit, count - begin)}, output, room, reduction);
  }
  return Status::Ok();
}

// `output` may be a source: its tile is written when that of all sources has been read.
void HostOrderedFold::FoldTile(const Slice& tile, void* output, uint8_t* room,
                               const TwoLevelReduction& reduction) {
  const int64_t offset_bytes = tile.offset * SizeOf(reduction.dtype);
  contributions_.clear();
  for (const uint8_t* source : sources_) {
    contributions_.push_back(source + offset_bytes);
    if (!reduction.is_wide) continue;
    WidenElements(reduction.dtype, source + offset_bytes, room, tile.count);
    contributions_.back() = room;
    room += kTileBytes;
  }
  partials_.clear();
  std::span<const void* const> rest(contributions_);
  for (const std::vector<int>& members : members_) {
    ReduceInRankOrder(rest.first(members.size()), room, tile.count, reduction.on_host);
    partials_.push_back(room);
    rest = rest.subspan(members.size());
    room += kTileBytes;
  }
  uint8_t* target = AsBytes(output) + offset_bytes;
  if (!reduction.is_wide) {
    ReduceInRankOrder(partials_, target, tile.count, reduction.across);
    return;
  }
  room -= kTileBytes;  // A source may be the output.
  ReduceInRankOrder(partials_, room, tile.count, reduction.across);
  NarrowElements(reduction.dtype, room, target, tile.count);
}

RankOrderedCollectives::RankOrderedCollectives(Transport* transport,
                                               const RankOrderedLimits& limits,
                                               const HostGroups& groups)
    : rank_(transport == nullptr ? 0 : transport->rank()),
      size_(transport == nullptr ? 1 : transport->size()),
      limits_(limits),
      transfers_(transport),
      adasum_(transport),
      fold_(groups) {}

bool RankOrderedCollectives::Supports(const BatchTraits& traits) const {
  const Reduction reduction{.dtype = traits.dtype, .op = traits.reduce_op};
  return traits.device < 0 && (!Reduces(traits.op) || reduction.ValidateFor(traits.op).ok());
}

Status RankOrderedCollectives::Allreduce(void* data, int64_t count, const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  if (count == 0) return Status::Ok();
  if (FitsOneShot(count, element_bytes)) return OneShotAllreduce(AsBytes(data), count, reduction);
  SplitEvenly(count, element_bytes);
  uint8_t* own_slice = AsBytes(data) + OwnSlice().offset * element_bytes;
  MYDIST_RETURN_IF_ERROR(FoldOwnSlice(AsBytes(data), own_slice, reduction));
  return transfers_.HandOut(AsBytes(data), slices_, element_bytes);
}

bool RankOrderedCollectives::FitsOneShot(int64_t count, int64_t element_bytes) const {
  return count <= limits_.one_shot_bytes / element_bytes / std::max(1, size_ - 1);
}

Status RankOrderedCollectives::OneShotAllreduce(uint8_t* data, int64_t count,
                                                const Reduction& reduction) {
  const int64_t bytes = count * SizeOf(reduction.dtype);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) transfers_.Send(peer, data, bytes);
  }
  return FoldAll(data, data, count, reduction);
}

void RankOrderedCollectives::SplitEvenly(int64_t count, int64_t element_bytes) {
  slices_.clear();
  for (int peer = 0; peer < size_; ++peer) {
    slices_.push_back(EvenSlice(count, element_bytes, size_, peer));
  }
}

// Everybody's part of our slice (slices_) is folded into `output`, in rounds that bound the scratch
// memory. `output` may be our slice of `input`: no other rank reads or writes that.
Status RankOrderedCollectives::FoldOwnSlice(const uint8_t* input, uint8_t* output,
                                            const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const int64_t limit = RoundLimit(element_bytes);
  const int64_t rounds = RoundCount(slices_, limit);
  for (int64_t index = 0; index < rounds; ++index) {
    const int64_t done = RoundOf(OwnSlice(), limit, index).offset - OwnSlice().offset;
    MYDIST_RETURN_IF_ERROR(
        FoldRound(input, Advance(output, done * element_bytes), {index, limit}, reduction));
  }
  return Status::Ok();
}

int64_t RankOrderedCollectives::RoundLimit(int64_t element_bytes) const {
  const int64_t peers = std::max(1, size_ - 1);
  const int64_t round_bytes = std::max(limits_.scratch_bytes / peers, limits_.minimum_round_bytes);
  return std::max<int64_t>(1, round_bytes / element_bytes);
}

// `output` is where our part of the round goes.
Status RankOrderedCollectives::FoldRound(const uint8_t* input, uint8_t* output, const Round& round,
                                         const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const Slice own = RoundOf(OwnSlice(), round.limit, round.index);
  const int64_t own_bytes = own.count * element_bytes;
  const int64_t stride = StrideOf(own_bytes);
  MYDIST_ASSIGN_OR_RETURN(uint8_t* const room, contributions_.Reserve(stride * (size_ - 1)));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Slice theirs = RoundOf(slices_[static_cast<size_t>(peer)], round.limit, round.index);
    transfers_.Send(peer, Advance(input, theirs.offset * element_bytes),
                    theirs.count * element_bytes);
    transfers_.Receive(peer, Advance(room, OffsetOf(peer, rank_, stride)), own_bytes);
  }
  MYDIST_RETURN_IF_ERROR(transfers_.Exchange());
  return FoldReceived(Advance(input, own.offset * element_bytes), room, output, own.count,
                      reduction);
}

// Our contribution and, from `room` on, those of all others.
Status RankOrderedCollectives::FoldReceived(const uint8_t* own, const uint8_t* room,
                                            uint8_t* output, int64_t count,
                                            const Reduction& reduction) {
  const int64_t stride = StrideOf(count * SizeOf(reduction.dtype));
  sources_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    sources_.push_back(rank == rank_ ? own : Advance(room, OffsetOf(rank, rank_, stride)));
  }
  return fold_.Fold(sources_, output, count, reduction);
}

Status RankOrderedCollectives::AdasumAllreduce(void* data, std::span<const int64_t> counts,
                                               const Reduction& reduction) {
  return adasum_.Allreduce(data, counts, reduction);
}

Status RankOrderedCollectives::Reduce(const void* input, void* output, int64_t count,
                                      const Reduction& reduction, int root) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const int64_t bytes = count * element_bytes;
  if (count == 0) return Status::Ok();
  if (FitsOneShot(count, element_bytes)) {
    if (rank_ == root) return FoldAll(AsBytes(input), AsBytes(output), count, reduction);
    transfers_.Send(root, AsBytes(input), bytes);
    return transfers_.Exchange();
  }
  SplitEvenly(count, element_bytes);
  const int64_t limit = RoundLimit(element_bytes);
  const int64_t rounds = RoundCount(slices_, limit);
  for (int64_t index = 0; index < rounds; ++index) {
    const Round round{index, limit};
    MYDIST_RETURN_IF_ERROR(
        rank_ == root ? ReduceRoundAtRoot(AsBytes(input), AsBytes(output), round, reduction)
                      : ReduceRoundFor(root, AsBytes(input), round, reduction));
  }
  return Status::Ok();
}

// Folds what all peers send, which is all they have.
Status RankOrderedCollectives::FoldAll(const uint8_t* input, uint8_t* output, int64_t count,
                                       const Reduction& reduction) {
  const int64_t bytes = count * SizeOf(reduction.dtype);
  const int64_t stride = StrideOf(bytes);
  MYDIST_ASSIGN_OR_RETURN(uint8_t* const room, contributions_.Reserve(stride * (size_ - 1)));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    transfers_.Receive(peer, room + OffsetOf(peer, rank_, stride), bytes);
  }
  MYDIST_RETURN_IF_ERROR(transfers_.Exchange());
  return FoldReceived(input, room, output, count, reduction);
}

// `output` may be `input`: what arrives overwrites only what peers have got from us already.
Status RankOrderedCollectives::ReduceRoundAtRoot(const uint8_t* input, uint8_t* output,
                                                 const Round& round, const Reduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const Slice own = RoundOf(OwnSlice(), round.limit, round.index);
  MYDIST_RETURN_IF_ERROR(FoldRound(input, output + own.offset * element_bytes, round, reduction));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Slice theirs = RoundOf(slices_[static_cast<size_t>(peer)], round.limit, round.index);
    transfers_.Receive(peer, output + theirs.offset * element_bytes, theirs.count * element_bytes);
  }
  return transfers_.Exchange();
}

Status RankOrderedCollectives::ReduceRoundFor(int root, const uint8_t* input, const Round& round,
                                              const Reduction& reduction) {
  const int64_t bytes =
      RoundOf(OwnSlice(), round.limit, round.index).count * SizeOf(reduction.dtype);
  MYDIST_ASSIGN_OR_RETURN(uint8_t* const folded, result_.Reserve(bytes));
  MYDIST_RETURN_IF_ERROR(FoldRound(input, folded, round, reduction));
  transfers_.Send(root, folded, bytes);
  return transfers_.Exchange();
}

Status RankOrderedCollectives::Allgather(const void* input, void* output,
                                         std::span<const int64_t> byte_counts) {
  SplitByCounts(byte_counts, slices_);
  const Slice own = OwnSlice();
  CopyBytes(Advance(AsBytes(output), own.offset), input, own.count);
  return transfers_.HandOut(AsBytes(output), slices_, 1);
}

Status RankOrderedCollectives::Gather(const void* input, void* output,
                                      std::span<const int64_t> byte_counts, int root) {
  SplitByCounts(byte_counts, slices_);
  if (rank_ != root) {
    transfers_.Send(root, AsBytes(input), OwnSlice().count);
    return transfers_.Exchange();
  }
  CopyBytes(Advance(AsBytes(output), OwnSlice().offset), input, OwnSlice().count);
  for (int peer = 0; peer < size_; ++peer) {
    const Slice theirs = slices_[static_cast<size_t>(peer)];
    if (peer != rank_) {
      transfers_.Receive(peer, Advance(AsBytes(output), theirs.offset), theirs.count);
    }
  }
  return transfers_.Exchange();
}

Status RankOrderedCollectives::Scatter(const void* input, std::span<const int64_t> byte_counts,
                                       void* output, int root) {
  const int64_t own_bytes = byte_counts[static_cast<size_t>(rank_)];
  if (rank_ != root) {
    transfers_.Receive(root, AsBytes(output), own_bytes);
    return transfers_.Exchange();
  }
  const uint8_t* source = AsBytes(input);
  for (int peer = 0; peer < size_; ++peer) {
    const int64_t bytes = byte_counts[static_cast<size_t>(peer)];
    if (peer == rank_) {
      CopyBytes(output, source, bytes);
    } else {
      transfers_.Send(peer, source, bytes);
    }
    source = Advance(source, bytes);
  }
  return transfers_.Exchange();
}

Status RankOrderedCollectives::Send(const void* data, int64_t bytes, int peer) {
  transfers_.Send(peer, AsBytes(data), bytes);
  return transfers_.Exchange();
}

Status RankOrderedCollectives::Receive(void* data, int64_t bytes, int peer) {
  transfers_.Receive(peer, AsBytes(data), bytes);
  return transfers_.Exchange();
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
      if (place + step < size_) transfers_.Send((rank_ + step) % size_, data, bytes);
    } else if (place < 2 * distance) {
      transfers_.Receive((rank_ - step + size_) % size_, data, bytes);
    }
    MYDIST_RETURN_IF_ERROR(transfers_.Exchange());
  }
  return Status::Ok();
}

// The root sends every byte once; the receivers pass their slices on to each other.
Status RankOrderedCollectives::ScatterBroadcast(uint8_t* data, int64_t bytes, int root) {
  SplitAmongReceivers(bytes, root);
  if (rank_ == root) {
    for (int peer = 0; peer < size_; ++peer) {
      const Slice theirs = slices_[static_cast<size_t>(peer)];
      if (peer != root) transfers_.Send(peer, data + theirs.offset, theirs.count);
    }
    return transfers_.Exchange();
  }
  transfers_.Receive(root, data + OwnSlice().offset, OwnSlice().count);
  MYDIST_RETURN_IF_ERROR(transfers_.Exchange());
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || peer == root) continue;
    const Slice theirs = slices_[static_cast<size_t>(peer)];
    transfers_.Send(peer, data + OwnSlice().offset, OwnSlice().count);
    transfers_.Receive(peer, data + theirs.offset, theirs.count);
  }
  return transfers_.Exchange();
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
      transfers_.Send(peer, source, outgoing);
      transfers_.Receive(peer, target, incoming);
    }
    source = Advance(source, outgoing);
    target = Advance(target, incoming);
  }
  return transfers_.Exchange();
}

Status RankOrderedCollectives::Reducescatter(const void* input, void* output,
                                             std::span<const int64_t> counts,
                                             const Reduction& reduction) {
  SplitByCounts(counts, slices_);
  return FoldOwnSlice(AsBytes(input), AsBytes(output), reduction);
}

// Dissemination: after the round with `distance` d, a rank knows that the 2 d - 1 ranks before it
// have come.
Status RankOrderedCollectives::Barrier() {
  uint8_t token_out = 1;
  uint8_t token_in = 0;
  for (int64_t distance = 1; distance < size_; distance *= 2) {
    const int step = static_cast<int>(distance);
    transfers_.Send((rank_ + step) % size_, &token_out, 1);
    transfers_.Receive((rank_ - step + size_) % size_, &token_in, 1);
    MYDIST_RETURN_IF_ERROR(transfers_.Exchange());
  }
  return Status::Ok();
}

}  // namespace mydist
