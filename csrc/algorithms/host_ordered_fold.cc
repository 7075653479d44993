#include "algorithms/host_ordered_fold.h"

#include <algorithm>

#include "kernels/element.h"
#include "kernels/reduction.h"

namespace mydist {
namespace {

constexpr int64_t kTileBytes = 4096;

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

}  // namespace mydist
