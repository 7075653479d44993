#include "algorithms/hierarchical.h"

#include <algorithm>
#include <utility>

#include "kernels/conversion.h"
#include "kernels/reduction.h"

namespace mydist {
namespace {

// Enough to be worth a message.
constexpr int64_t kLeastRoundBytes = int64_t{64} << 10;

constexpr int64_t kLineBytes = 64;
// What RankOrderedCollectives exchanges at once.
constexpr int64_t kOneShotBytes = RankOrderedLimits{}.one_shot_bytes;

int64_t CeilOf(int64_t amount, int64_t unit) { return (amount + unit - 1) / unit; }

}  // namespace

HierarchicalRoutes::HierarchicalRoutes(const HostGroups& groups, Transport* transport,
                                       Collectives* local, const HierarchicalLimits& limits)
    : rank_(transport->rank()),
      size_(static_cast<size_t>(transport->size())),
      place_(static_cast<size_t>(groups.place)),
      limits_(limits),
      local_(local),
      transfers_(transport) {
  const size_t places = groups.own_members().size();
  for (const int member : groups.own_members()) routes_.push_back({member});
  for (int host = 0; host < groups.host_count(); ++host) {
    const std::vector<int>& members = groups.members[static_cast<size_t>(host)];
    partners_.push_back(members[place_ % members.size()]);
    if (host == groups.host) continue;
    for (size_t place = 0; place < members.size(); ++place) {
      routes_[place % places].push_back(members[place]);
    }
  }
}

int64_t HierarchicalRoutes::RoundLimit(int64_t element_bytes) const {
  const int64_t bytes = limits_.chunk_bytes / static_cast<int64_t>(size_);
  const int64_t limit_bytes = std::max(bytes, std::min(kLeastRoundBytes, limits_.chunk_bytes));
  return std::max<int64_t>(1, limit_bytes / element_bytes);
}

// What each rank of this host stands for in this round (counts_); returns the sum.
int64_t HierarchicalRoutes::CountRoutes(const Round& round) {
  counts_.clear();
  for (const std::vector<int>& route : routes_) {
    int64_t count = 0;
    for (const int rank : route) count += PartOf(rank, round).count;
    counts_.push_back(count);
  }
  return Total(counts_);
}

// visitor(part of a rank of the set, its place when parts are ordered by route).
template <typename Visitor>
void HierarchicalRoutes::VisitRoutes(const Round& round, Visitor visitor) const {
  int64_t packed_offset = 0;
  for (const std::vector<int>& route : routes_) {
    for (const int rank : route) {
      const Slice part = PartOf(rank, round);
      visitor(part, packed_offset);
      packed_offset += part.count;
    }
  }
}

Status HierarchicalRoutes::Allgather(const void* input, void* output,
                                     std::span<const int64_t> byte_counts) {
  SplitByCounts(byte_counts, slices_);
  const int64_t limit = RoundLimit(1);
  const int64_t rounds = RoundCount(slices_, limit);
  for (int64_t index = 0; index < rounds; ++index) {
    MYDIST_RETURN_IF_ERROR(GatherRound(AsBytes(input), AsBytes(output), {index, limit}));
  }
  return Status::Ok();
}

Status HierarchicalRoutes::GatherRound(const uint8_t* input, uint8_t* output, const Round& round) {
  MYDIST_ASSIGN_OR_RETURN(uint8_t * packed, packed_.Reserve(CountRoutes(round)));
  uint8_t* const block = Advance(packed, OffsetOf(counts_, static_cast<int>(place_)));
  const Slice own = PartOf(rank_, round);
  const uint8_t* contribution =
      Advance(input, own.offset - slices_[static_cast<size_t>(rank_)].offset);
  for (const int partner : partners_) {
    if (partner != rank_) transfers_.Send(partner, contribution, own.count);
  }
  CopyBytes(block, contribution, own.count);
  uint8_t* room = block;
  for (const int rank : routes_[place_]) {
    const int64_t bytes = PartOf(rank, round).count;
    if (rank != rank_) transfers_.Receive(rank, room, bytes);
    room = Advance(room, bytes);
  }
  MYDIST_RETURN_IF_ERROR(transfers_.Exchange());
  MYDIST_RETURN_IF_ERROR(local_->Allgather(block, packed, counts_));
  VisitRoutes(round, [&](const Slice& part, int64_t packed_offset) {
    CopyBytes(Advance(output, part.offset), Advance(packed, packed_offset), part.count);
  });
  return Status::Ok();
}

Status HierarchicalRoutes::Reducescatter(const void* input, void* output,
                                         std::span<const int64_t> counts, const Reduction& whole) {
  const TwoLevelReduction reduction(whole);
  SplitByCounts(counts, slices_);
  const int64_t limit = RoundLimit(reduction.partial_bytes());
  const int64_t rounds = RoundCount(slices_, limit);
  for (int64_t index = 0; index < rounds; ++index) {
    MYDIST_RETURN_IF_ERROR(
        ScatterRound(AsBytes(input), AsBytes(output), {index, limit}, reduction));
  }
  return Status::Ok();
}

Status HierarchicalRoutes::ScatterRound(const uint8_t* input, uint8_t* output, const Round& round,
                                        const TwoLevelReduction& reduction) {
  MYDIST_ASSIGN_OR_RETURN(uint8_t * block, FoldRoutes(input, round, reduction));
  MYDIST_RETURN_IF_ERROR(SwapPartials(block, round, reduction.partial_bytes()));
  const Slice own = PartOf(rank_, round);
  if (own.count == 0) return Status::Ok();
  const int64_t done = own.offset - slices_[static_cast<size_t>(rank_)].offset;
  uint8_t* target = output + done * SizeOf(reduction.dtype);
  if (!reduction.is_wide) {
    ReduceInRankOrder(sources_, target, own.count, reduction.across);
    return Status::Ok();
  }
  MYDIST_ASSIGN_OR_RETURN(uint8_t * folded, folded_.Reserve(own.count * reduction.partial_bytes()));
  ReduceInRankOrder(sources_, folded, own.count, reduction.across);
  NarrowElements(reduction.dtype, folded, target, own.count);
  return Status::Ok();
}

// What this host has folded for this rank and for those that it is the partner of.
Result<uint8_t*> HierarchicalRoutes::FoldRoutes(const uint8_t* input, const Round& round,
                                                const TwoLevelReduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const int64_t partial_bytes = reduction.partial_bytes();
  MYDIST_ASSIGN_OR_RETURN(uint8_t * packed, packed_.Reserve(CountRoutes(round) * partial_bytes));
  VisitRoutes(round, [&](const Slice& part, int64_t packed_offset) {
    const uint8_t* source = Advance(input, part.offset * element_bytes);
    uint8_t* target = Advance(packed, packed_offset * partial_bytes);
    if (reduction.is_wide) {
      WidenElements(reduction.dtype, source, target, part.count);
    } else {
      CopyBytes(target, source, part.count * element_bytes);
    }
  });
  MYDIST_ASSIGN_OR_RETURN(uint8_t * block, partial_.Reserve(counts_[place_] * partial_bytes));
  MYDIST_RETURN_IF_ERROR(local_->Reducescatter(packed, block, counts_, reduction.on_host));
  return block;
}

// Afterwards sources_ has what each host has folded for this rank, in the order of hosts.
Status HierarchicalRoutes::SwapPartials(uint8_t* block, const Round& round, int64_t element_bytes) {
  const int64_t own_bytes = PartOf(rank_, round).count * element_bytes;
  MYDIST_ASSIGN_OR_RETURN(uint8_t * room,
                          others_.Reserve(own_bytes * static_cast<int64_t>(partners_.size() - 1)));
  const uint8_t* partial = block;
  for (const int rank : routes_[place_]) {
    const int64_t bytes = PartOf(rank, round).count * element_bytes;
    if (rank != rank_) transfers_.Send(rank, partial, bytes);
    partial = Advance(partial, bytes);
  }
  sources_.clear();
  for (const int partner : partners_) {
    if (partner == rank_) {
      sources_.push_back(block);  // A route begins with the rank itself.
      continue;
    }
    transfers_.Receive(partner, room, own_bytes);
    sources_.push_back(room);
    room = Advance(room, own_bytes);
  }
  return transfers_.Exchange();
}

Hierarchical::Hierarchical(HostGroups groups, Transport* transport,
                           std::unique_ptr<Collectives> local, const HierarchicalLimits& limits)
    : Hierarchical(std::move(groups),
                   {.local = std::move(local),
                    .cross = nullptr,
                    .new_memory = [] { return std::make_unique<FusionBuffer>(); }},
                   limits) {
  flat_ = std::make_unique<RankOrderedCollectives>(transport);
  if (local_ == nullptr) {
    host_transport_.emplace(transport, groups_.own_members());
    local_ = std::make_unique<RankOrderedCollectives>(&*host_transport_);
  }
  if (groups_.place < groups_.smallest()) {
    column_transport_.emplace(transport, groups_.Column(groups_.place));
    cross_ = std::make_unique<RankOrderedCollectives>(&*column_transport_);
  }
  routes_.emplace(groups_, transport, local_.get(), limits_);
}

Hierarchical::Hierarchical(HostGroups groups, HierarchicalParts parts,
                           const HierarchicalLimits& limits)
    : groups_(std::move(groups)),
      limits_(limits),
      seats_(groups_.Seats()),
      local_(std::move(parts.local)),
      cross_(std::move(parts.cross)),
      wide_(parts.new_memory()),
      partial_(parts.new_memory()),
      folded_(parts.new_memory()),
      narrow_(parts.new_memory()) {}

bool Hierarchical::Supports(const BatchTraits& traits) const {
  if (flat_ != nullptr) return flat_->Supports(traits);
  const bool is_ours = traits.op == OpKind::kAllreduce || traits.op == OpKind::kReduce ||
                       traits.op == OpKind::kBroadcast || traits.op == OpKind::kBarrier;
  if (!is_ours || traits.reduce_op == ReduceOp::kAdasum) return false;
  // What they do for it, in the type that partial sums may have.
  const auto does = [&](const Collectives& part, OpKind op) {
    BatchTraits step = traits;
    step.op = op;
    if (!part.Supports(step)) return false;
    if (IsHalfWidth(traits.dtype)) step.dtype = DataType::kFloat32;
    return part.Supports(step);
  };
  const bool moves = does(*local_, OpKind::kAllgather) && does(*local_, OpKind::kBroadcast) &&
                     does(*local_, OpKind::kGather) && does(*local_, OpKind::kReducescatter);
  return moves && (cross_ == nullptr || does(*cross_, traits.op));
}

HierarchicalRoutes& Hierarchical::Routes() {
  MYDIST_CHECK(routes_.has_value());
  return *routes_;
}

int64_t Hierarchical::scratch_capacity_bytes() const {
  return wide_->capacity_bytes() + partial_->capacity_bytes() + folded_->capacity_bytes() +
         narrow_->capacity_bytes() + (routes_ ? routes_->scratch_capacity_bytes() : 0);
}

// The slices of `count` elements: how many each rank of this host has (counts_).
void Hierarchical::Split(int64_t count, int64_t element_bytes) {
  const int owners = count * element_bytes <= limits_.one_slice_bytes ? 1 : groups_.smallest();
  counts_.assign(groups_.own_members().size(), 0);
  for (int owner = 0; owner < owners; ++owner) {
    counts_[static_cast<size_t>(owner)] = EvenSlice(count, element_bytes, owners, owner).count;
  }
}

std::span<const int64_t> Hierarchical::ByteCounts(int64_t element_bytes) {
  byte_counts_.clear();
  for (const int64_t count : counts_) byte_counts_.push_back(count * element_bytes);
  return byte_counts_;
}

// Elements of a chunk, the last of which may be shorter. Chunks are alike, for a short one would be
// exchanged in another way, and divide evenly among ranks and hosts: then no host sends more than
// its share.
int64_t Hierarchical::ChunkLimit(int64_t count, int64_t element_bytes) const {
  const int64_t unit_bytes = kLineBytes * groups_.smallest() * groups_.host_count();
  const int64_t chunks = std::max<int64_t>(1, CeilOf(count * element_bytes, limits_.chunk_bytes));
  const int64_t chunk_bytes = CeilOf(count * element_bytes, chunks);
  return std::max<int64_t>(1, CeilOf(chunk_bytes, unit_bytes)) * unit_bytes / element_bytes;
}

Status Hierarchical::Allreduce(void* data, int64_t count, const Reduction& whole) {
  const TwoLevelReduction reduction(whole);
  const int64_t element_bytes = SizeOf(whole.dtype);
  const int64_t limit = ChunkLimit(count, element_bytes);
  for (int64_t begin = 0; begin < count; begin += limit) {
    uint8_t* chunk = AsBytes(data) + begin * element_bytes;
    Split(std::min(limit, count - begin), element_bytes);
    // In place, as long as it is of the tensor's type: one copy less in and out.
    uint8_t* own_part = chunk + OffsetOf(counts_, groups_.place) * element_bytes;
    MYDIST_ASSIGN_OR_RETURN(uint8_t * partial,
                            FoldOnHost(chunk, reduction.is_wide ? nullptr : own_part, reduction));
    MYDIST_ASSIGN_OR_RETURN(const uint8_t* slice, ReduceAcross(partial, reduction));
    MYDIST_RETURN_IF_ERROR(local_->Allgather(slice, chunk, ByteCounts(element_bytes)));
  }
  return Status::Ok();
}

// This rank's slice (counts_) of what its host has folded: in `own_part` of the input, or, if that
// is null, in memory of its own.
Result<uint8_t*> Hierarchical::FoldOnHost(const uint8_t* input, uint8_t* own_part,
                                          const TwoLevelReduction& reduction) {
  if (reduction.is_wide) {
    const int64_t count = Total(counts_);
    MYDIST_ASSIGN_OR_RETURN(uint8_t * wide, wide_->Reserve(count * reduction.partial_bytes()));
    const ConvertSegment whole{input, wide, count};
    MYDIST_RETURN_IF_ERROR(
        wide_->Convert({&whole, 1}, {.from = reduction.dtype, .to = DataType::kFloat32}));
    input = wide;
  }
  uint8_t* partial = own_part;
  if (partial == nullptr) {
    MYDIST_ASSIGN_OR_RETURN(partial, partial_->Reserve(OwnCount() * reduction.partial_bytes()));
  }
  MYDIST_RETURN_IF_ERROR(local_->Reducescatter(input, partial, counts_, reduction.on_host));
  return partial;
}

// The slice as all hosts have folded it.
Result<const uint8_t*> Hierarchical::ReduceAcross(uint8_t* partial,
                                                  const TwoLevelReduction& reduction) {
  if (OwnCount() == 0) return static_cast<const uint8_t*>(partial);
  if (reduction.is_wide) return ReduceAcrossWide(partial, reduction);
  MYDIST_RETURN_IF_ERROR(cross_->Allreduce(partial, OwnCount(), reduction.across));
  return static_cast<const uint8_t*>(partial);
}

// What is folded travels wide, what is handed out is rounded first.
Result<const uint8_t*> Hierarchical::ReduceAcrossWide(uint8_t* partial,
                                                      const TwoLevelReduction& reduction) {
  const int64_t element_bytes = SizeOf(reduction.dtype);
  const int hosts = groups_.host_count();
  if (OwnCount() * reduction.partial_bytes() * (hosts - 1) <= kOneShotBytes) {
    MYDIST_RETURN_IF_ERROR(cross_->Allreduce(partial, OwnCount(), reduction.across));
    return Narrowed(partial, reduction);
  }
  std::vector<int64_t> counts;
  std::vector<int64_t> byte_counts;
  for (int host = 0; host < hosts; ++host) {
    counts.push_back(EvenSlice(OwnCount(), element_bytes, hosts, host).count);
    byte_counts.push_back(counts.back() * element_bytes);
  }
  const int64_t count = counts[static_cast<size_t>(groups_.host)];
  MYDIST_ASSIGN_OR_RETURN(uint8_t * folded, folded_->Reserve(count * reduction.partial_bytes()));
  MYDIST_RETURN_IF_ERROR(cross_->Reducescatter(partial, folded, counts, reduction.across));
  MYDIST_ASSIGN_OR_RETURN(uint8_t * slice, narrow_->Reserve(OwnCount() * element_bytes));
  uint8_t* own = slice + OffsetOf(byte_counts, groups_.host);
  MYDIST_RETURN_IF_ERROR(Round({folded, own, count}, reduction));
  MYDIST_RETURN_IF_ERROR(cross_->Allgather(own, slice, byte_counts));
  return static_cast<const uint8_t*>(slice);
}

Result<const uint8_t*> Hierarchical::Narrowed(const uint8_t* wide,
                                              const TwoLevelReduction& reduction) {
  MYDIST_ASSIGN_OR_RETURN(uint8_t * narrow, narrow_->Reserve(OwnCount() * SizeOf(reduction.dtype)));
  MYDIST_RETURN_IF_ERROR(Round({wide, narrow, OwnCount()}, reduction));
  return static_cast<const uint8_t*>(narrow);
}

Status Hierarchical::Round(const ConvertSegment& wide, const TwoLevelReduction& reduction) {
  const OverflowWatch watch;
  return narrow_->Convert({&wide, 1}, {.from = DataType::kFloat32, .to = reduction.dtype});
}

Status Hierarchical::Reduce(const void* input, void* output, int64_t count, const Reduction& whole,
                            int root) {
  const TwoLevelReduction reduction(whole);
  const int64_t element_bytes = SizeOf(whole.dtype);
  const int64_t limit = ChunkLimit(count, element_bytes);
  for (int64_t begin = 0; begin < count; begin += limit) {
    const int64_t offset = begin * element_bytes;
    MYDIST_RETURN_IF_ERROR(ReduceChunk(AsBytes(input) + offset, Advance(AsBytes(output), offset),
                                       std::min(limit, count - begin), reduction,
                                       seats_[static_cast<size_t>(root)]));
  }
  return Status::Ok();
}

Status Hierarchical::ReduceChunk(const uint8_t* input, uint8_t* output, int64_t count,
                                 const TwoLevelReduction& reduction, const HostSeat& root) {
  Split(count, SizeOf(reduction.dtype));
  MYDIST_ASSIGN_OR_RETURN(uint8_t * partial, FoldOnHost(input, nullptr, reduction));
  if (OwnCount() > 0) {
    MYDIST_RETURN_IF_ERROR(
        cross_->Reduce(partial, partial, OwnCount(), reduction.across, root.host));
  }
  if (groups_.host != root.host) return Status::Ok();
  const uint8_t* slice = partial;
  if (reduction.is_wide) {
    MYDIST_ASSIGN_OR_RETURN(slice, Narrowed(partial, reduction));
  }
  return local_->Gather(slice, output, ByteCounts(SizeOf(reduction.dtype)), root.place);
}

Status Hierarchical::Broadcast(void* data, int64_t bytes, int root) {
  const HostSeat seat = seats_[static_cast<size_t>(root)];
  if (bytes == 0) return Status::Ok();
  Split(bytes, 1);
  uint8_t* slice = AsBytes(data) + OffsetOf(counts_, groups_.place);
  const bool has_root = groups_.host == seat.host;
  if (has_root) MYDIST_RETURN_IF_ERROR(local_->Broadcast(data, bytes, seat.place));
  if (OwnCount() > 0) MYDIST_RETURN_IF_ERROR(cross_->Broadcast(slice, OwnCount(), seat.host));
  return has_root ? Status::Ok() : local_->Allgather(slice, data, counts_);
}

Status Hierarchical::Barrier() {
  MYDIST_RETURN_IF_ERROR(local_->Barrier());
  if (groups_.place == 0) MYDIST_RETURN_IF_ERROR(cross_->Barrier());
  return local_->Barrier();
}

}  // namespace mydist
