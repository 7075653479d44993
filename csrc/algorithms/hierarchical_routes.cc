#include "algorithms/hierarchical_routes.h"

#include <algorithm>

#include "kernels/element.h"
#include "kernels/reduction.h"

namespace mydist {
namespace {

// Enough to be worth a message.
constexpr int64_t kLeastRoundBytes = int64_t{64} << 10;

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

void HierarchicalRoutes::SplitByCounts(std::span<const int64_t> counts) {
  slices_.clear();
  int64_t offset = 0;
  for (const int64_t count : counts) {
    slices_.push_back({offset, count});
    offset += count;
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
  SplitByCounts(byte_counts);
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
  SplitByCounts(counts);
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

}  // namespace mydist
