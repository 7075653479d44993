#include "controller/tree.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace mydist {
namespace {

// Each level of a subtree is one run of consecutive ranks, so the result is ascending.
std::vector<int32_t> Subtree(int32_t top, int32_t size, int32_t radix) {
  std::vector<int32_t> ranks;
  int64_t first = top;
  int64_t last = top;
  while (first < size) {
    for (int64_t rank = first; rank <= std::min<int64_t>(last, size - 1); ++rank) {
      ranks.push_back(static_cast<int32_t>(rank));
    }
    first = first * radix + 1;
    last = last * radix + radix;
  }
  return ranks;
}

// Both ascending.
std::vector<int32_t> Common(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

}  // namespace

std::optional<size_t> Vertex::LaneOf(int32_t peer) const {
  if (peer == rank) return std::nullopt;
  const auto lane = std::lower_bound(lanes.begin(), lanes.end(), peer,
                                     [](const Lane& a, int32_t b) { return a.peer < b; });
  if (lane == lanes.end() || lane->peer != peer) return std::nullopt;
  return static_cast<size_t>(lane - lanes.begin());
}

Vertex MakeVertex(int32_t rank, int32_t size, int32_t radix) {
  MYDIST_CHECK(rank >= 0 && rank < size && radix >= 1);
  Vertex vertex;
  vertex.rank = rank;
  vertex.parent = rank == 0 ? -1 : (rank - 1) / radix;
  vertex.lanes.push_back({rank, {rank}});
  const int64_t first_child = int64_t{rank} * radix + 1;
  for (int64_t child = first_child; child < std::min<int64_t>(first_child + radix, size); ++child) {
    const auto peer = static_cast<int32_t>(child);
    vertex.lanes.push_back({peer, Subtree(peer, size, radix)});
  }
  vertex.members = Subtree(rank, size, radix);
  return vertex;
}

Vertex Restrict(const Vertex& vertex, const std::vector<int32_t>& set_ranks) {
  Vertex restricted{
      .rank = vertex.rank,
      .parent = vertex.parent,
      .lanes = {},
      .members = Common(vertex.members, set_ranks),
      .is_member = std::binary_search(set_ranks.begin(), set_ranks.end(), vertex.rank)};
  for (const Lane& lane : vertex.lanes) {
    std::vector<int32_t> ranks = Common(lane.ranks, set_ranks);
    if (!ranks.empty()) restricted.lanes.push_back({lane.peer, std::move(ranks)});
  }
  return restricted;
}

}  // namespace mydist
