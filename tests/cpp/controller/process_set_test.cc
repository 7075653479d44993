// Process sets: every rank has the same ones under the same numbers, whatever becomes ready in them
// is seen by their members only, in one order, and no set waits for another.
#include <gmock/gmock.h>

#include "controller/simulated_job.h"

namespace mydist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Request AddRequest(std::string name, std::vector<int32_t> ranks) {
  Request request = MakeRequest(std::move(name), {0});
  request.op = OpKind::kAddProcessSet;
  request.ranks = std::move(ranks);
  return request;
}

Request RemoveRequest(std::string name, ProcessSetId set) {
  Request request = MakeRequest(std::move(name), {0});
  request.op = OpKind::kRemoveProcessSet;
  request.process_set = set;
  return request;
}

Request InSet(ProcessSetId set, std::string name) {
  Request request = MakeRequest(std::move(name));
  request.process_set = set;
  return request;
}

ProcessSetId AddSet(SimulatedJob& job, const std::vector<int32_t>& ranks) {
  job.AnnounceAll(AddRequest("add", ranks));
  job.RunUntilQuiet();
  ProcessSetId id = -1;
  for (int rank = 0; rank < job.size(); ++rank) {
    const Response& response = job.batches(rank).back().back();
    EXPECT_EQ(response.agreement->request.ranks, ranks);
    if (rank == 0) id = response.added_set;
    EXPECT_EQ(response.added_set, id);
  }
  return id;
}

// Where a rank's responses of a set begin with `set`: names in order.
std::vector<std::string> ReadyNames(const SimulatedJob& job, int rank, ProcessSetId set = -1) {
  std::vector<std::string> names;
  for (const Batch& batch : job.batches(rank)) {
    for (const Response& response : batch) {
      if (response.kind != ResponseKind::kReady) continue;
      if (set < 0 || response.process_set == set) names.push_back(response.agreement->request.name);
    }
  }
  return names;
}

TEST(ProcessSetTest, RanksThatDisagreeAboutTheMembersAreAllTold) {
  SimulatedJob job({.size = 3});
  job.Announce(0, AddRequest("add", {0, 1}));
  job.Announce(1, AddRequest("add", {0, 1}));
  job.Announce(2, AddRequest("add", {1, 2}));
  job.RunUntilQuiet();
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(job.Errors(rank).size(), 1u);
    EXPECT_THAT(job.Errors(rank)[0], HasSubstr("ranks disagree on the ranks"));
    EXPECT_THAT(job.Errors(rank)[0], HasSubstr("rank 2: ranks 1, 2"));
    EXPECT_THAT(job.Errors(rank)[0], HasSubstr("the same process sets in the same order"));
  }
  EXPECT_EQ(AddSet(job, {0, 1}), 1);
}

// What stalls at the very moment at which its set is removed ends with the set: behind that item
// nobody knows the set any more.
TEST(ProcessSetTest, AStallInARemovedSetIsNotSpokenOf) {
  for (const int shutdown : {0, 20}) {
    SimulatedJob job({.size = 3,
                      .stall_warning = std::chrono::seconds(10),
                      .stall_shutdown = std::chrono::seconds(shutdown)});
    const ProcessSetId set = AddSet(job, {0, 2});
    job.Announce(0, InSet(set, "x"));
    job.Announce(0, RemoveRequest("remove", set));
    job.RunUntilQuiet();
    job.Announce(2, RemoveRequest("remove", set));
    ASSERT_TRUE(job.Step(2).ok());
    while (job.DeliverOne()) {
    }
    job.now += std::chrono::seconds(30);
    job.RunUntilQuiet();
    EXPECT_THAT(job.Errors(0), ElementsAre(HasSubstr("process set 1 was removed while 'x'")));
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ReadyNames(job, rank).back(), "remove") << rank;
  }
}

TEST(ProcessSetTest, OnlyMembersAndParticipantsMaySubmit) {
  SimulatedJob job({.size = 3});
  const ProcessSetId set = AddSet(job, {1, 2});
  EXPECT_THAT(job.coordinator(0).Announce({InSet(set, "x")}, job.now).ToString(),
              HasSubstr("rank 0 does not take part in it; the call is for ranks 1, 2 only"));
  Request send = MakeRequest("s");
  send.op = OpKind::kSendReceive;
  send.ranks = {0, 2};
  EXPECT_THAT(job.coordinator(1).Announce({send}, job.now).ToString(),
              HasSubstr("does not take part in it"));
  job.Announce(2, send);
  job.Announce(0, send);
  job.RunUntilQuiet();
  EXPECT_EQ(ReadyNames(job, 0).back(), "s");
  EXPECT_EQ(ReadyNames(job, 2).back(), "s");
  EXPECT_EQ(ReadyNames(job, 1).back(), "add");
}

TEST(ProcessSetTest, RanksThatCannotBeAreRefusedAtOnce) {
  SimulatedJob job({.size = 3});
  const auto refusal = [&](OpKind op, std::vector<int32_t> ranks) {
    Request request = AddRequest("r", std::move(ranks));
    request.op = op;
    return job.coordinator(0).Announce({request}, job.now).ToString();
  };
  using Ranks = std::vector<int32_t>;
  for (const Ranks& ranks : {Ranks{}, Ranks{0, 3}, Ranks{-1, 0}, Ranks{1, 0}, Ranks{0, 0}}) {
    EXPECT_THAT(refusal(OpKind::kAddProcessSet, ranks), HasSubstr("expected ranks in ascending"));
  }
  for (const Ranks& ranks : {Ranks{0, 3}, Ranks{-1, 0}, Ranks{0, 0}}) {
    EXPECT_THAT(refusal(OpKind::kSendReceive, ranks), HasSubstr("expected two different ranks"));
  }
  EXPECT_THAT(refusal(OpKind::kSendReceive, {0}), HasSubstr("names 1 ranks"));
  EXPECT_THAT(refusal(OpKind::kAllreduce, {0}), HasSubstr("expected none"));
  EXPECT_THAT(refusal(OpKind::kRemoveProcessSet, {}), HasSubstr("which cannot be removed"));
  Request nested = AddRequest("nested", {0});
  nested.process_set = AddSet(job, {0, 1});
  EXPECT_THAT(job.coordinator(0).Announce({nested}, job.now).ToString(),
              HasSubstr("expected set 0, because every rank has to take part"));
}

TEST(ProcessSetTest, APairDisagreesWithItselfOnly) {
  SimulatedJob job({.size = 4, .radix = 1});
  Request send = MakeRequest("s", {4});
  send.op = OpKind::kSendReceive;
  send.ranks = {1, 3};
  job.Announce(1, send);
  send.shape = Shape({5});
  job.Announce(3, send);
  job.RunUntilQuiet();
  EXPECT_THAT(job.Errors(1), ElementsAre(HasSubstr("disagree on the shape of this send/recv")));
  EXPECT_EQ(job.Errors(3), job.Errors(1));
  EXPECT_THAT(job.Errors(0), IsEmpty());
}

TEST(ProcessSetTest, AStallNamesMembersOnly) {
  SimulatedJob job({.size = 5, .radix = 2, .stall_warning = std::chrono::seconds(10)});
  const ProcessSetId set = AddSet(job, {1, 3, 4});
  job.Announce(3, InSet(set, "x"));
  job.RunUntilQuiet();
  for (const int seconds : {6, 5}) {  // In between, inner vertices report.
    job.now += std::chrono::seconds(seconds);
    job.RunUntilQuiet();
  }
  EXPECT_THAT(job.Stalls(3), ElementsAre(HasSubstr("waits for ranks 1, 4 ")));
}

TEST(ProcessSetTest, AStallShowsThatTheOthersUseAnotherSet) {
  SimulatedJob job({.size = 3, .stall_warning = std::chrono::seconds(10)});
  const ProcessSetId set = AddSet(job, {0, 1});
  const ProcessSetId apart = AddSet(job, {1, 2});
  job.Announce(0, InSet(set, "x"));
  job.Announce(1, InSet(kGlobalProcessSet, "x"));
  job.Announce(2, InSet(apart, "x"));  // Has no rank in common with those that wait in `set`.
  job.RunUntilQuiet();
  job.now += std::chrono::seconds(11);
  job.RunUntilQuiet();
  ASSERT_FALSE(job.Stalls(0).empty());
  EXPECT_THAT(job.Stalls(0),
              ::testing::Contains(HasSubstr("\n  'x' in process set 1 is ready on rank 0"
                                            "\n  'x' in process set 0 is ready on rank 1"
                                            "\nIf this is one tensor, pass the same process_set")));
}

}  // namespace
}  // namespace mydist
