// The tree of coordinators: that it is one, that its vertices stay small, and that hosts are
// entered once.
#include "controller/tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace mydist {
namespace {

using Hosts = std::vector<std::string>;

std::vector<Vertex> TreeOf(int32_t size, int32_t radix, const Hosts& hosts = {}) {
  std::vector<Vertex> tree;
  for (int32_t rank = 0; rank < size; ++rank) tree.push_back(MakeVertex(rank, size, radix, hosts));
  return tree;
}

// Each vertex's lanes are exactly its children with all that is below them.
void ExpectTree(const std::vector<Vertex>& tree) {
  for (const Vertex& vertex : tree) {
    EXPECT_EQ(vertex.is_root(), vertex.rank == 0);
    EXPECT_LT(vertex.parent, vertex.rank);
    EXPECT_EQ(vertex.lanes.front().peer, vertex.rank);
    std::vector<int32_t> members;
    for (const Lane& lane : vertex.lanes) {
      EXPECT_TRUE(std::is_sorted(lane.ranks.begin(), lane.ranks.end()));
      members.insert(members.end(), lane.ranks.begin(), lane.ranks.end());
      if (lane.peer == vertex.rank) continue;
      const Vertex& child = tree[static_cast<size_t>(lane.peer)];
      EXPECT_EQ(child.parent, vertex.rank);
      EXPECT_EQ(child.members, lane.ranks);
    }
    std::sort(members.begin(), members.end());
    EXPECT_EQ(vertex.members, members);
    EXPECT_TRUE(std::is_sorted(vertex.lanes.begin(), vertex.lanes.end(),
                               [](const Lane& a, const Lane& b) { return a.peer < b.peer; }));
  }
  std::vector<int32_t> all(tree.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(tree.front().members, all);
}

TEST(Tree, OfOneHostFollowsTheRadix) {
  for (const int32_t radix : {1, 2, 3, 32}) {
    const auto tree = TreeOf(40, radix, radix == 3 ? Hosts(40, "a") : Hosts());
    ExpectTree(tree);
    for (int32_t rank = 1; rank < 40; ++rank) {
      EXPECT_EQ(tree[static_cast<size_t>(rank)].parent, (rank - 1) / radix);
    }
  }
}

TEST(Tree, RanksReportToTheLowestOfTheirHost) {
  const Hosts hosts = {"a", "b", "a", "b", "b", "c"};
  const auto tree = TreeOf(6, 32, hosts);
  ExpectTree(tree);
  const std::vector<int32_t> expected = {-1, 0, 0, 1, 1, 0};
  for (size_t rank = 0; rank < 6; ++rank) EXPECT_EQ(tree[rank].parent, expected[rank]) << rank;
}

// Any layout: one tree, at most `radix` children, and one way into each host but the root's.
TEST(Tree, OfAnyHostsIsBoundedAndEntersEachHostOnce) {
  std::mt19937 random(20240717);
  for (int round = 0; round < 300; ++round) {
    const auto size = static_cast<int32_t>(1 + random() % 120);
    const auto radix = static_cast<int32_t>(4 + random() % 30);
    const uint32_t host_count = 1 + random() % 20;
    Hosts hosts;
    for (int32_t rank = 0; rank < size; ++rank) {
      hosts.push_back("h" + std::to_string(random() % host_count));
    }
    const auto tree = TreeOf(size, radix, hosts);
    ExpectTree(tree);
    std::map<std::string, int> entries;
    for (const Vertex& vertex : tree) {
      EXPECT_LE(vertex.lanes.size(), static_cast<size_t>(radix) + 1);
      const std::string& host = hosts[static_cast<size_t>(vertex.rank)];
      if (vertex.is_root() || hosts[static_cast<size_t>(vertex.parent)] != host) ++entries[host];
    }
    if (std::set<std::string>(hosts.begin(), hosts.end()).size() == hosts.size()) continue;
    for (const auto& [host, count] : entries) EXPECT_EQ(count, 1) << host << " of round " << round;
  }
}

TEST(Tree, OfManyHostsIsNotDeep) {
  Hosts hosts;
  for (int rank = 0; rank < 4096; ++rank) hosts.push_back("h" + std::to_string(rank / 8));
  int depth = 0;
  for (int32_t rank = 4095; rank >= 0; ++depth) rank = MakeVertex(rank, 4096, 32, hosts).parent;
  EXPECT_LE(depth, 5);
}

}  // namespace
}  // namespace mydist
