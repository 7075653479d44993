#include "world/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace mydist {
namespace {

Topology Make(int rank, const std::vector<std::string>& hosts) {
  return MakeTopology(rank, hosts).value();
}

TEST(TopologyTest, UnevenHosts) {
  const std::vector<std::string> hosts = {"a", "a", "b", "b", "b"};
  for (int rank = 0; rank < 5; ++rank) EXPECT_FALSE(Make(rank, hosts).is_homogeneous);
  EXPECT_EQ(Make(1, hosts).local_size, 2);
  EXPECT_EQ(Make(3, hosts).local_size, 3);
  EXPECT_EQ(Make(3, hosts).cross_size, 2);
  EXPECT_EQ(Make(3, hosts).cross_rank, 1);
  // Only b has a third rank.
  EXPECT_EQ(Make(4, hosts).local_rank, 2);
  EXPECT_EQ(Make(4, hosts).cross_size, 1);
  EXPECT_EQ(Make(4, hosts).cross_rank, 0);
}

TEST(TopologyTest, HostsAreNumberedByTheirLowestRankNotByName) {
  const std::vector<std::string> hosts = {"z", "a", "m"};
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(Make(rank, hosts).cross_rank, rank);
}

TEST(TopologyTest, RanksOutsideTheJobAreRefused) {
  for (const int rank : {-1, 2, 1000}) {
    const auto topology = MakeTopology(rank, {"a", "b"});
    EXPECT_EQ(topology.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(topology.status().message(),
              "rank " + std::to_string(rank) + " is outside a job of size 2; expected 0 to size-1");
  }
  EXPECT_FALSE(MakeTopology(0, {}).ok());
}

// Whatever the layout: local ranks count up on each host, cross ranks over the hosts.
TEST(TopologyTest, AnyLayoutIsConsistent) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> hosts(1 + random() % 20);
    for (std::string& host : hosts) host = std::string(1, static_cast<char>('a' + random() % 5));
    std::map<int, std::set<int>> crosses_of_local;
    std::map<int, int> cross_size_of_local;
    std::set<int> local_sizes;
    for (size_t r = 0; r < hosts.size(); ++r) {
      const Topology topology = Make(static_cast<int>(r), hosts);
      const auto own = hosts.begin() + static_cast<std::ptrdiff_t>(r);
      EXPECT_EQ(topology.local_rank, std::count(hosts.begin(), own, *own));
      EXPECT_TRUE(crosses_of_local[topology.local_rank].insert(topology.cross_rank).second);
      EXPECT_EQ(topology.local_size, std::count(hosts.begin(), hosts.end(), hosts[r]));
      EXPECT_LT(topology.local_rank, topology.local_size);
      const auto it = cross_size_of_local.emplace(topology.local_rank, topology.cross_size).first;
      EXPECT_EQ(it->second, topology.cross_size);
      local_sizes.insert(topology.local_size);
    }
    for (const auto& [local, crosses] : crosses_of_local) {
      EXPECT_EQ(static_cast<int>(crosses.size()), cross_size_of_local[local]);
      EXPECT_EQ(*crosses.rbegin(), cross_size_of_local[local] - 1);  // 0 … size-1, no gaps.
    }
    EXPECT_EQ(Make(0, hosts).is_homogeneous, local_sizes.size() == 1);
  }
}

}  // namespace
}  // namespace mydist
