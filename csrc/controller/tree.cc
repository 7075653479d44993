#include "controller/tree.h"

#include <algorithm>

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

}  // namespace

std::optional<size_t> Vertex::LaneOf(int32_t peer) const {
  // Children are consecutive ranks.
  if (lanes.size() < 2) return std::nullopt;
  const int64_t index = int64_t{peer} - lanes[1].peer + 1;
  if (index < 1 || index >= static_cast<int64_t>(lanes.size())) return std::nullopt;
  return static_cast<size_t>(index);
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

}  // namespace mydist
