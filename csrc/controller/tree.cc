#include "controller/tree.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "world/topology.h"

namespace mydist {
namespace {

// Below this, children shared out between host and hosts would make a chain of one of the two.
constexpr int32_t kLeastRadixForHosts = 4;

// Of each of `ranks`, ascending, in a tree of them whose top is the first. The top keeps its own.
void LinkTree(const std::vector<int32_t>& ranks, int32_t radix, std::vector<int32_t>& parents) {
  for (size_t i = 1; i < ranks.size(); ++i) {
    parents[static_cast<size_t>(ranks[i])] = ranks[(i - 1) / static_cast<size_t>(radix)];
  }
}

// Of each rank; -1 for the root. A parent is always lower than its children.
std::vector<int32_t> Parents(int32_t size, int32_t radix, const std::vector<std::string>& hosts) {
  std::vector<int32_t> parents(static_cast<size_t>(size), -1);
  const std::vector<std::vector<int>> by_host = RanksByHost(hosts);
  size_t largest = 0;
  for (const auto& ranks : by_host) largest = std::max(largest, ranks.size());
  if (by_host.size() < 2 || largest < 2 || radix < kLeastRadixForHosts) {
    std::vector<int32_t> all(static_cast<size_t>(size));
    std::iota(all.begin(), all.end(), 0);
    LinkTree(all, radix, parents);
    return parents;
  }
  const int32_t local_radix =
      static_cast<int32_t>(std::min(largest - 1, static_cast<size_t>(radix / 2)));
  std::vector<int32_t> leaders;
  for (const auto& ranks : by_host) {
    LinkTree(ranks, local_radix, parents);
    leaders.push_back(ranks.front());
  }
  LinkTree(leaders, radix - local_radix, parents);
  return parents;
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

Vertex MakeVertex(int32_t rank, int32_t size, int32_t radix,
                  const std::vector<std::string>& hosts) {
  MYDIST_CHECK(rank >= 0 && rank < size && radix >= 1);
  MYDIST_CHECK(hosts.empty() || hosts.size() == static_cast<size_t>(size));
  const std::vector<int32_t> parents = Parents(size, radix, hosts);
  Vertex vertex{
      .rank = rank, .parent = parents[static_cast<size_t>(rank)], .lanes = {{rank, {rank}}}};
  vertex.members = {rank};
  // Which lane each rank below us is in; parents come first.
  std::vector<size_t> lane_of(static_cast<size_t>(size), 0);
  for (int32_t below = rank + 1; below < size; ++below) {
    const int32_t parent = parents[static_cast<size_t>(below)];
    size_t& lane = lane_of[static_cast<size_t>(below)];
    if (parent == rank) {
      lane = vertex.lanes.size();
      vertex.lanes.push_back({below, {}});
    } else {
      lane = lane_of[static_cast<size_t>(parent)];
    }
    if (lane == 0) continue;
    vertex.lanes[lane].ranks.push_back(below);
    vertex.members.push_back(below);
  }
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
