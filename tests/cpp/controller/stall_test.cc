// Tensors that some ranks never submit, watched with a clock that only the test moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/call_name.h"
#include "controller/messages/stall_text.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr const char* kAdvice =
    " Every rank has to submit the same tensors: look for a branch that only some ranks take, or "
    "a rank that is slow, stopped or already done.";

// Moves the clock in steps of a second, as ranks that sleep until their deadlines would see it.
void Pass(SimulatedJob& job, int seconds_count) {
  for (int i = 0; i < seconds_count; ++i) {
    job.now += seconds(1);
    job.RunUntilQuiet();
  }
}

class StallTest : public ::testing::TestWithParam<bool> {
 protected:
  bool cached() const { return GetParam(); }

  // Makes 'x' known to the cache of every rank first, in half of the cases.
  void Warm(SimulatedJob& job) {
    if (!cached()) return;
    job.AnnounceAll(MakeRequest("x"));
    job.RunUntilQuiet();
  }
};

TEST_P(StallTest, EveryRankLearnsWhoIsMissing) {
  SimulatedJob job({.size = 4, .radix = 2, .stall_warning = seconds(10), .names_hosts = true});
  Warm(job);
  job.Announce(0, MakeRequest("x"));
  job.Announce(1, MakeRequest("x"));
  job.RunUntilQuiet();
  Pass(job, 9);
  for (int rank = 0; rank < 4; ++rank) EXPECT_THAT(job.Stalls(rank), IsEmpty());
  Pass(job, 1);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(job.Stalls(rank), ElementsAre("allreduce 'x' waits for ranks 2, 3 (hosts h2, h3) "
                                              "for 10 s; ready on ranks 0, 1." +
                                              std::string(kAdvice)));
  }
  Pass(job, 9);
  job.Announce(2, MakeRequest("x"));
  job.RunUntilQuiet();
  Pass(job, 1);
  EXPECT_THAT(job.Stalls(3).back(),
              HasSubstr("waits for rank 3 (host h3) for 20 s; ready on ranks 0-2."));
  job.Announce(3, MakeRequest("x"));
  Pass(job, 100);
  EXPECT_EQ(job.Stalls(3).size(), 2u);
  EXPECT_THAT(job.Log(1).end()[-2], "ready x [4]");
}

// The ready rank sits below a vertex that is not ready: only notes tell the root about it.
TEST_P(StallTest, ALeafThatIsReadyAloneIsNotCalledMissing) {
  SimulatedJob job({.size = 7, .radix = 2, .stall_warning = seconds(10)});
  Warm(job);
  job.Announce(5, MakeRequest("x"));
  job.Announce(3, MakeRequest("x"));
  job.RunUntilQuiet();
  Pass(job, 10);
  for (int rank = 0; rank < 7; ++rank) {
    EXPECT_THAT(job.Stalls(rank), ElementsAre("allreduce 'x' waits for ranks 0-2, 4, 6 for 10 "
                                              "s; ready on ranks 3, 5." +
                                              std::string(kAdvice)));
  }
}

TEST_P(StallTest, LaterArrivalsBelowAWaitingVertexAreSeen) {
  SimulatedJob job({.size = 7, .radix = 2, .stall_warning = seconds(10)});
  Warm(job);
  job.Announce(3, MakeRequest("x"));
  job.RunUntilQuiet();
  Pass(job, 8);
  job.Announce(4, MakeRequest("x"));
  job.RunUntilQuiet();
  Pass(job, 2);
  EXPECT_THAT(job.Stalls(6), ElementsAre(HasSubstr("ready on ranks 3, 4.")));
}

TEST_P(StallTest, AfterTheShutdownTimeTheTensorFailsEverywhere) {
  for (const int warning : {0, 10}) {
    SimulatedJob job(
        {.size = 5, .radix = 2, .stall_warning = seconds(warning), .stall_shutdown = seconds(30)});
    Warm(job);
    for (const int rank : {0, 1, 3, 4}) job.Announce(rank, MakeRequest("x"));
    job.RunUntilQuiet();
    Pass(job, 29);
    EXPECT_THAT(job.Errors(0), IsEmpty());
    Pass(job, 1);
    const std::string text =
        "TIMEOUT: allreduce 'x' waits for rank 2 for 30 s; ready on ranks 0, 1, 3, 4." +
        std::string(kAdvice);
    for (const int rank : {0, 1, 3, 4}) EXPECT_THAT(job.Errors(rank), ElementsAre(text));
    EXPECT_EQ(job.Stalls(0).size(), warning == 0 ? 0u : 2u);
    // Rank 2 has to miss the step the others gave up.
    const Status missed = job.coordinator(2).Announce({MakeRequest("x")}, job.now);
    EXPECT_EQ(missed.ToString(), text);
    for (const Response& response : job.batches(0).back()) {
      if (response.kind != ResponseKind::kError) continue;
      EXPECT_EQ(response.status.failure(), missed.failure());
    }
    EXPECT_EQ(missed.failure().operation, "allreduce");
    EXPECT_EQ(missed.failure().tensor, "x");
    EXPECT_EQ(missed.failure().phase, "negotiate");
    EXPECT_THAT(missed.failure().ranks, ElementsAre(2));
    // The next attempt is a fresh one: what was ready before does not count.
    job.Announce(2, MakeRequest("x"));
    job.RunUntilQuiet();
    EXPECT_THAT(job.Errors(2), IsEmpty());
    for (const int rank : {0, 1, 3, 4}) job.Announce(rank, MakeRequest("x"));
    job.RunUntilQuiet();
    for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(job.Log(rank).end()[-2], "ready x [4]");
  }
}

// A late rank misses the turn from the moment at which it could know, whatever else it has yet to
// execute before.
TEST(StallRaceTest, ATurnIsMissedBeforeEarlierBatchesAreExecuted) {
  SimulatedJob job({.size = 2, .stall_shutdown = seconds(30)});
  job.Announce(1, MakeRequest("y"));
  job.RunUntilQuiet();
  job.Announce(0, MakeRequest("y"));
  ASSERT_TRUE(job.Step(0).ok());
  job.Announce(0, MakeRequest("x"));
  ASSERT_TRUE(job.Step(0).ok());
  job.now += seconds(30);
  ASSERT_TRUE(job.Step(0).ok());
  while (job.DeliverOne()) {
  }
  ASSERT_TRUE(job.Step(1).ok());  // Hands out the batch of y.
  ASSERT_EQ(job.Log(1), (std::vector<std::string>{"ready y [4]", "|"}));
  EXPECT_THAT(job.coordinator(1).Announce({MakeRequest("x")}, job.now).ToString(),
              HasSubstr("TIMEOUT: allreduce 'x' waits for rank 1"));
  job.RunUntilQuiet();
  job.Announce(0, MakeRequest("x"));
  job.RunUntilQuiet();
  EXPECT_EQ(job.Log(1).size(), 2u);  // Rank 1 has not submitted it.
}

// Nobody but the two ranks of a send/recv misses it, and an end of join() makes up for everything.
TEST(StallRaceTest, OnlyWhoTakesPartMissesATurn) {
  SimulatedJob job({.size = 4, .radix = 1, .stall_shutdown = seconds(30)});
  Request send = MakeRequest("x");
  send.op = OpKind::kSendReceive;
  send.ranks = {0, 2};
  job.Announce(0, send);
  job.Announce(0, MakeRequest("y"));
  job.RunUntilQuiet();
  job.now += seconds(30);
  job.RunUntilQuiet();
  EXPECT_EQ(job.Errors(0).size(), 2u);
  send.ranks = {1, 3};
  for (const int rank : {1, 3}) job.Announce(rank, send);
  job.RunUntilQuiet();
  EXPECT_EQ(job.Log(3), (std::vector<std::string>{"ready x [4]", "|"}));
  EXPECT_FALSE(job.coordinator(2).Announce({MakeRequest("x")}, job.now).ok());
  for (int rank = 0; rank < 4; ++rank) job.Join(rank);
  job.RunUntilQuiet();
  job.AnnounceAll(MakeRequest("y"));
  job.RunUntilQuiet();
  EXPECT_EQ(job.Log(3).end()[-2], "ready y [4]");
}

INSTANTIATE_TEST_SUITE_P(Paths, StallTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Cached" : "Fresh"; });

// A report that was under way when the error was decided belongs to the attempt that failed.
TEST(StallRaceTest, ALateReportOfAFailedAttemptDoesNotCount) {
  for (const bool cached : {false, true}) {
    for (uint32_t seed = 0; seed < 30; ++seed) {
      SimulatedJob job({.size = 4, .radix = 1, .stall_shutdown = seconds(30), .seed = seed});
      if (cached) job.AnnounceAll(MakeRequest("x"));
      job.RunUntilQuiet();
      for (const int rank : {0, 1, 2}) job.Announce(rank, MakeRequest("x"));
      job.RunUntilQuiet();
      job.now += seconds(30);
      job.Announce(3, MakeRequest("x"));
      ASSERT_TRUE(job.Step(3).ok());  // Its report is on the way,
      ASSERT_TRUE(job.Step(0).ok());  // when the root gives up.
      job.RunUntilQuiet();
      for (int rank = 0; rank < 4; ++rank) ASSERT_EQ(job.Errors(rank).size(), 1u) << rank;
      job.Announce(2, MakeRequest("x"));
      job.Announce(3, MakeRequest("x"));
      job.RunUntilQuiet();
      const size_t before = job.batches(0).size();
      job.Announce(1, MakeRequest("x"));
      job.RunUntilQuiet();
      ASSERT_EQ(job.batches(0).size(), before);
      job.Announce(0, MakeRequest("x"));
      job.RunUntilQuiet();
      for (int rank = 0; rank < 4; ++rank) ASSERT_EQ(job.Log(rank).end()[-2], "ready x [4]");
    }
  }
}

TEST(StallTextTest, NearMissesAreShownSideBySide) {
  SimulatedJob job({.size = 3, .radix = 2, .stall_warning = seconds(10)});
  job.Announce(0, MakeRequest("layer1.weight"));
  job.Announce(1, MakeRequest("layer1.weight"));
  job.Announce(2, MakeRequest("layer1.weigth"));
  job.RunUntilQuiet();
  Pass(job, 10);
  EXPECT_THAT(
      job.Stalls(1),
      ElementsAre(
          "allreduce 'layer1.weight' waits for rank 2 for 10 s; ready on ranks "
          "0, 1.\n  'layer1.weight' is ready on ranks 0, 1\n  'layer1.weigth' is "
          "ready on rank 2\nThis is one tensor under two names, or some ranks skip a call: use "
          "the same name on every rank, and look for a branch that only some ranks take.",
          "allreduce 'layer1.weigth' waits for ranks 0, 1 for 10 s; ready on "
          "rank 2.\n  'layer1.weigth' is ready on rank 2\n  'layer1.weight' is "
          "ready on ranks 0, 1\nThis is one tensor under two names, or some ranks skip a call: "
          "use the same name on every rank, and look for a branch that only some ranks "
          "take."));
}

// One of them runs out of time first.
TEST(StallTextTest, BothTimeOutsHintAtTheNearMiss) {
  SimulatedJob job({.size = 2, .stall_warning = seconds(5), .stall_shutdown = seconds(10)});
  job.Announce(0, MakeRequest("layer1.weight"));
  job.RunUntilQuiet();
  Pass(job, 1);
  job.Announce(1, MakeRequest("layer1.weigth"));
  job.RunUntilQuiet();
  Pass(job, 9);
  Pass(job, 1);
  const auto hints = [&](int rank) {
    std::vector<std::string> found;
    for (const auto& batch : job.batches(rank)) {
      for (const Response& response : batch) {
        if (response.kind == ResponseKind::kError) found.push_back(response.status.failure().hint);
      }
    }
    return found;
  };
  const std::string weight = "'layer1.weight' is ready on rank 0";
  const std::string weigth = "'layer1.weigth' is ready on rank 1";
  const std::string advice =
      ". This is one tensor under two names, or some ranks skip a call: use the same name on every "
      "rank, and look for a branch that only some ranks take.";
  EXPECT_THAT(hints(0), ElementsAre(weight + ", and " + weigth + advice));
  EXPECT_THAT(hints(1), ElementsAre(weigth + ", and " + weight + advice));
}

// Whose names have been alike before, and have come since.
TEST(StallTextTest, AHintIsNotAboutAnEarlierWait) {
  SimulatedJob job({.size = 2, .stall_warning = seconds(5), .stall_shutdown = seconds(10)});
  job.Announce(0, MakeRequest("w1"));
  job.RunUntilQuiet();
  Pass(job, 1);
  job.Announce(1, MakeRequest("w2"));
  job.RunUntilQuiet();
  Pass(job, 9);
  job.Announce(0, MakeRequest("w2"));
  job.RunUntilQuiet();
  ASSERT_EQ(job.Errors(0).size(), 1u);
  Pass(job, 1);
  job.Announce(1, MakeRequest("w2"));
  job.RunUntilQuiet();
  Pass(job, 10);
  ASSERT_EQ(job.Errors(1).size(), 1u);
  EXPECT_EQ(job.batches(1).back().front().status.failure().hint, "");
}

WaitingTensor Waiting(const std::string& name, std::vector<int32_t> ready,
                      std::vector<int64_t> dims = {4}) {
  WaitingTensor waiting;
  waiting.request = MakeRequest(name, std::move(dims));
  waiting.ready = std::move(ready);
  return waiting;
}

// The most alike name, or one of the same shape, that no rank has besides.
TEST(StallTextTest, NearMissesAreThoseOfOtherRanks) {
  const auto miss = [](const WaitingTensor& of, const std::vector<WaitingTensor>& others) {
    const WaitingTensor* const found = FindNearMiss(of, others);
    return found == nullptr ? "" : found->request.name;
  };
  EXPECT_EQ(
      miss(Waiting("conv1.bias", {0}), {Waiting("something.else", {1}), Waiting("conv2.bias", {1}),
                                        Waiting("conv1.bias", {0})}),
      "conv2.bias");
  EXPECT_EQ(miss(Waiting("alpha", {0}, {8, 8}), {Waiting("omega.z", {1}, {8, 8})}), "omega.z");
  EXPECT_EQ(miss(Waiting("alpha", {0}, {8, 8}), {Waiting("omega.z", {1}, {8, 9})}), "");
  EXPECT_EQ(miss(Waiting("w1", {0, 2}), {Waiting("w2", {1, 2})}), "");
  EXPECT_EQ(miss(Waiting("w1", {0, 2}), {Waiting("w2", {1})}), "w2");
  EXPECT_EQ(EditDistance("abc", ""), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("weight", "weigth"), 2u);
}

TEST(StallReportTest, AnIncompleteGroupIsReported) {
  SimulatedJob job({.size = 2, .stall_warning = seconds(10), .stall_shutdown = seconds(15)});
  Request request = MakeRequest("a");
  request.group = "g";
  request.group_size = 3;
  job.AnnounceAll(request);
  job.RunUntilQuiet();
  Pass(job, 10);
  EXPECT_THAT(job.Stalls(1), ElementsAre("group 'g' has waited for 10 s: 1 of its 3 tensors are "
                                         "ready on all ranks, among them 'a'. Submit all members "
                                         "of a group together, with the right group size."));
  Pass(job, 5);
  EXPECT_THAT(job.Errors(1).at(0), HasSubstr("TIMEOUT: group 'g' has waited for 15 s"));
  EXPECT_EQ(job.Errors(0), job.Errors(1));
}

TEST(StallReportTest, TensorsThatWaitForTheSameRanksAreOneWarning) {
  SimulatedJob job({.size = 3, .stall_warning = seconds(10)});
  for (int i = 0; i < 100; ++i) {
    for (const int rank : {0, 1}) job.Announce(rank, MakeRequest("t" + std::to_string(i), {i}));
  }
  job.Announce(0, MakeRequest("alone"));
  job.RunUntilQuiet();
  Pass(job, 10);
  ASSERT_EQ(job.Stalls(0).size(), 2u);
  EXPECT_THAT(job.Stalls(0)[0],
              StartsWith("allreduce 't0' and 99 more tensors ('t1', 't2', 't3', 't4', …) wait for "
                         "rank 2"));
  EXPECT_THAT(job.Stalls(0)[1], StartsWith("allreduce 'alone' waits for ranks 1, 2"));
}

TEST(StallReportTest, ManyLookAlikesAreCountedNotListed) {
  SimulatedJob job({.size = 2, .stall_warning = seconds(10)});
  for (int i = 0; i < 15; ++i) {
    for (const int rank : {0, 1}) {
      job.Announce(rank, MakeRequest("t" + std::to_string(i) + (rank == 0 ? "a" : "b")));
    }
  }
  job.RunUntilQuiet();
  Pass(job, 10);
  EXPECT_EQ(job.Stalls(0).size(), 21u);
  EXPECT_EQ(job.Stalls(0).back(), "10 more tensors wait for ranks that are not ready.");
}

TEST(StallReportTest, NothingIsSaidAboutWhatIsInTime) {
  SimulatedJob job({.size = 5, .radix = 2, .stall_warning = seconds(10)});
  for (int step = 0; step < 30; ++step) {
    job.AnnounceAll(MakeRequest("x"));
    Pass(job, 4);
  }
  EXPECT_THAT(job.Stalls(0), IsEmpty());
  const uint64_t sent = job.MessagesSent();
  Pass(job, 100);
  EXPECT_EQ(job.MessagesSent(), sent);
}

}  // namespace
}  // namespace mydist
