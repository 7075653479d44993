#include "base/usable_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <sstream>

namespace mydist {
namespace {

using Ranks = std::vector<UsableCores>;

UsableCores On(std::vector<int> cores) { return {std::move(cores)}; }
UsableCores Under(double quota, const std::string& group) {
  return {{0, 1, 2, 3}, {CpuQuota{quota, group}}};
}

TEST(HaveACoreEach, ComparesWithQuotas) {
  EXPECT_TRUE(HaveACoreEach(Ranks{Under(2, "a"), Under(2, "a")}));
  EXPECT_FALSE(HaveACoreEach(Ranks{Under(1.5, "a"), Under(1.5, "a")}));
  EXPECT_TRUE(HaveACoreEach(Ranks{Under(1, "a"), Under(1, "b"), On({0, 1, 2, 3})}))
      << "containers with a core each";
  EXPECT_FALSE(HaveACoreEach(Ranks{Under(0.5, "a"), On({0, 1, 2, 3})}));
}

// Of four ranks two are in each of two groups, which have three cores together.
TEST(HaveACoreEach, ComparesWithQuotasAroundTighterOnes) {
  const auto in = [](const std::string& group, double around) {
    return UsableCores{{0, 1, 2, 3}, {CpuQuota{2, group}, CpuQuota{around, "around"}}};
  };
  EXPECT_FALSE(HaveACoreEach(Ranks{in("a", 3), in("a", 3), in("b", 3), in("b", 3)}));
  EXPECT_TRUE(HaveACoreEach(Ranks{in("a", 3), in("a", 3), in("b", 3)}));
  EXPECT_TRUE(HaveACoreEach(Ranks{in("a", 4), in("a", 4), in("b", 4), in("b", 4)}));
}

TEST(HaveACoreEach, OneAloneHasWhatThereIs) {
  EXPECT_TRUE(HaveACoreEach(Ranks{Under(0.5, "a")}));
  EXPECT_TRUE(HaveACoreEach(Ranks{On({})}));
  EXPECT_FALSE(HaveACoreEach(Ranks{On({}), On({0, 1})})) << "not known is no core";
}

// Against all ways to deal out the cores.
bool CanDealOut(const Ranks& ranks, size_t first, unsigned taken) {
  if (first == ranks.size()) return true;
  for (const int core : ranks[first].cores) {
    const unsigned bit = 1u << core;
    if ((taken & bit) == 0 && CanDealOut(ranks, first + 1, taken | bit)) return true;
  }
  return false;
}

TEST(HaveACoreEach, AgreesWithTryingAllWays) {
  std::mt19937 random(7);
  int yes_count = 0;
  for (int round = 0; round < 3000; ++round) {
    Ranks ranks(2 + random() % 5);
    for (UsableCores& rank : ranks) {
      for (int core = 0; core < 6; ++core) {
        if (random() % 3 == 0) rank.cores.push_back(core);
      }
    }
    const bool expected = CanDealOut(ranks, 0, 0);
    ASSERT_EQ(HaveACoreEach(ranks), expected) << "round " << round;
    yes_count += expected ? 1 : 0;
  }
  EXPECT_GT(yes_count, 300);
  EXPECT_LT(yes_count, 2700);
}

TEST(HaveACoreEach, IsQuickForManyRanksOfABigMachine) {
  UsableCores all;
  for (int core = 0; core < 511; ++core) all.cores.push_back(core);
  EXPECT_FALSE(HaveACoreEach(Ranks(512, all)));
  EXPECT_TRUE(HaveACoreEach(Ranks(511, all)));
}

TEST(UsableCores, SurviveAsText) {
  const Ranks all = {On({}),
                     On({0}),
                     On({0, 1, 2, 5, 7, 8}),
                     Under(1.5, "27:4031"),
                     {{0, 1}, {CpuQuota{1, "27:4031"}, CpuQuota{2.5, "27:1"}}},
                     {{0}, {CpuQuota{1.2345678, "27:1"}}}};
  EXPECT_EQ(all[2].ToText(), "0-2,5,7-8");
  EXPECT_EQ(all[3].ToText(), "0-3 1.5 of 27:4031");
  EXPECT_EQ(all[4].ToText(), "0-1 1 of 27:4031 2.5 of 27:1");
  EXPECT_EQ(all[5].ToText(), "0 1.2345678 of 27:1");
  for (const UsableCores& cores : all) EXPECT_EQ(UsableCores::FromText(cores.ToText()), cores);
}

TEST(UsableCores, OtherTextIsRefused) {
  std::istringstream texts(
      "x;1-;-1;3-1;1,1;2,1;0-99999999;65536;,1;1,;1 ;1 2 of;1 2 of a b;1 2 of a 3;1 2 of a 3 of;"
      "1 2 of a 3 of ;1 2 of a 0 of b;1 -2 of a;1 nan of a;4294967296");
  for (std::string text; std::getline(texts, text, ';');) {
    EXPECT_EQ(UsableCores::FromText(text), std::nullopt) << text;
  }
  EXPECT_EQ(UsableCores::FromText("1;2"), std::nullopt);
}

TEST(UsableCores, OfThisThreadAreWhatItIsPinnedTo) {
  const UsableCores all = UsableCores::OfThisThread();
  ASSERT_FALSE(all.cores.empty());
  const pid_t pid = fork();
  if (pid == 0) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(all.cores.back()), &one);
    const bool is_pinned = sched_setaffinity(0, sizeof one, &one) == 0;
    const bool is_right = UsableCores::OfThisThread().cores == std::vector<int>{all.cores.back()};
    _exit(is_pinned && is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace mydist
