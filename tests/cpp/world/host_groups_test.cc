#include "world/topology.h"

#include <gmock/gmock.h>

namespace mydist {
namespace {

using ::testing::ElementsAre;

TEST(HostGroupsTest, UnevenHosts) {
  const HostGroups groups = MakeHostGroups({"a", "a", "b", "b", "b"}, {0, 1, 2, 3, 4}, 4);
  EXPECT_THAT(groups.members, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4)));
  EXPECT_EQ(groups.host, 1);
  EXPECT_EQ(groups.place, 2);
  EXPECT_EQ(groups.smallest(), 2);
  EXPECT_EQ(groups.host_count(), 2);
  EXPECT_TRUE(groups.HasTwoLevels());
}

// A column follows the hosts, not the numbers of its ranks.
TEST(HostGroupsTest, RanksOfAHostNeedNotBeNeighbours) {
  const HostGroups groups = MakeHostGroups({"a", "b", "b", "a"}, {0, 1, 2, 3}, 3);
  EXPECT_THAT(groups.members, ElementsAre(ElementsAre(0, 3), ElementsAre(1, 2)));
  EXPECT_THAT(groups.own_members(), ElementsAre(0, 3));
  EXPECT_THAT(groups.Column(0), ElementsAre(0, 1));
  EXPECT_THAT(groups.Column(1), ElementsAre(3, 2));
}

// Of the job's ranks only members count, under their numbers in the set.
TEST(HostGroupsTest, OfAProcessSet) {
  const std::vector<std::string> hosts = {"a", "a", "b", "b", "c"};
  const HostGroups groups = MakeHostGroups(hosts, {1, 2, 4}, 4);
  EXPECT_THAT(groups.members, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
  EXPECT_EQ(groups.host, 2);
  EXPECT_EQ(groups.place, 0);
  EXPECT_FALSE(groups.HasTwoLevels());
  EXPECT_FALSE(MakeHostGroups(hosts, {2, 3}, 2).HasTwoLevels());
  EXPECT_TRUE(MakeHostGroups(hosts, {2, 3, 4}, 2).HasTwoLevels());
}

TEST(HostGroupsDeathTest, RefusesARankThatIsNoMember) {
  EXPECT_DEATH(MakeHostGroups({"a", "b"}, {0}, 1), "");
}

}  // namespace
}  // namespace mydist
