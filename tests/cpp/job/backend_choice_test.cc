#include "job/job_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mydist {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Chosen(BackendFacts facts) {
  facts.network = "gloo";
  const auto choice = ChooseBackend(facts);
  return choice.ok() ? choice->name + ": " + choice->why : choice.status().ToString();
}

TEST(BackendChoice, OneHostNeedsNothingInstalled) {
  EXPECT_EQ(Chosen({.asked = "auto", .is_one_host = true, .no_network_reason = "not built"}),
            "local: all ranks are on one host and share memory");
}

TEST(BackendChoice, TheNetworkIsNextAndTheReasonIsSaid) {
  EXPECT_EQ(Chosen({.asked = "auto", .is_one_host = true, .no_arena_reason = "no room"}),
            "gloo: the ranks do not share memory: no room");
  EXPECT_EQ(Chosen({.asked = "auto"}), "gloo: the ranks are on several hosts");
}

TEST(BackendChoice, WhatIsAskedForIsTaken) {
  EXPECT_EQ(Chosen({.asked = "gloo", .is_one_host = true}), "gloo: MYDIST_CONTROLLER names it");
  EXPECT_EQ(Chosen({.asked = "local", .is_one_host = true}), "local: MYDIST_CONTROLLER names it");
}

TEST(BackendChoice, WhatIsMissingIsAnErrorThatSaysWhatToDo) {
  EXPECT_THAT(Chosen({.asked = "auto",
                      .is_one_host = true,
                      .no_arena_reason = "needed 7 bytes, free 3",
                      .no_network_reason = "not built"}),
              AllOf(HasSubstr("needed 7 bytes, free 3"), HasSubstr("not built"),
                    HasSubstr("Fix shared memory or install gloo"), HasSubstr("mydistrun --mpi")));
  EXPECT_THAT(Chosen({.asked = "auto", .no_network_reason = "not built"}),
              AllOf(HasSubstr("ranks on several hosts"), HasSubstr("Install gloo")));
  EXPECT_THAT(Chosen({.asked = "gloo", .is_one_host = true, .no_network_reason = "not built"}),
              HasSubstr("INTERNAL: not built"));
  EXPECT_THAT(Chosen({.asked = "local"}), HasSubstr("is for jobs of one host"));
  EXPECT_THAT(Chosen({.asked = "local", .is_one_host = true, .no_arena_reason = "no room"}),
              HasSubstr("needs shared memory between the ranks, which is unavailable: no room"));
}

TEST(BackendChoice, AsksForTheNetworkOnlyWhereItMayBeTaken) {
  EXPECT_FALSE(MayTakeNetwork({.asked = "auto", .is_one_host = true}));
  EXPECT_FALSE(MayTakeNetwork({.asked = "local", .no_arena_reason = "no room"}));
  EXPECT_TRUE(MayTakeNetwork({.asked = "gloo", .is_one_host = true}));
  EXPECT_TRUE(MayTakeNetwork({.asked = "auto", .is_one_host = true, .no_arena_reason = "no room"}));
  EXPECT_TRUE(MayTakeNetwork({.asked = "auto"}));
}

TEST(BackendChoice, NamesTheRankWithoutTheNetwork) {
  EXPECT_EQ(NoNetworkReason({"", ""}, {"a", "b"}), "");
  EXPECT_EQ(NoNetworkReason({"not built", "not built"}, {"a", "b"}), "not built");
  EXPECT_THAT(NoNetworkReason({"", "cannot be loaded"}, {"a", "b"}),
              AllOf(HasSubstr("rank 1 (host b)"), HasSubstr("cannot be loaded"),
                    HasSubstr("install the same build")));
}

}  // namespace
}  // namespace mydist
