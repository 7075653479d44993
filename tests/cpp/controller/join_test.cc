// Ranks that are out of data: whatever the order of events, the others' tensors become ready
// without them, with no rows of theirs, and all are back once the last one has joined.
#include <gmock/gmock.h>

#include <algorithm>

#include "controller/simulated_job.h"

namespace mydist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kTensorCount = 5;

// Each rank submits its tensors some number of times, then joins.
struct UnevenData {
  uint32_t seed = 0;
  bool with_changes = true;

  uint32_t Draw(int round, int step, int tensor, int salt) const {
    std::seed_seq sequence{static_cast<int>(seed), round, step, tensor, salt};
    std::mt19937 random(sequence);
    return random();
  }
  int Steps(int round, int rank) const {
    return static_cast<int>(Draw(round, 0, 0, 100 + rank) % 5);
  }
  int MostSteps(int round, int size) const {
    int most = 0;
    for (int rank = 0; rank < size; ++rank) most = std::max(most, Steps(round, rank));
    return most;
  }
  static int64_t Rows(int rank, int step) { return rank + step / 2 + 1; }

  Request At(int round, int step, int tensor, int rank) const {
    Request request = MakeRequest("t" + std::to_string(tensor), {3, 2});
    if (with_changes && Draw(round, step, tensor, 1) % 3 == 0) request.shape = Shape({4, step + 1});
    if (tensor == 1) {
      request.op = OpKind::kAllgather;
      request.shape = request.shape.WithFirstDim(Rows(rank, step));
    }
    if (tensor == 2) request.op = OpKind::kBarrier;
    if (tensor >= 3) {
      request.group = "g";
      request.group_size = 2;
      request.op = OpKind::kAllreduce;
    }
    return request;
  }
};

class Trainer {
 public:
  Trainer(const UnevenData& data, SimulatedJob& job, int rank)
      : data_(data), job_(job), rank_(rank) {}

  // Announces a tensor that is not in flight, or joins when there is none left.
  void Act(int round) {
    TakeAnswers();
    if (has_joined_) return;
    const int steps = data_.Steps(round, rank_);
    std::vector<int> choices;
    for (int tensor = 0; tensor <= 3; ++tensor) {
      const bool is_free = tensor < 3 ? !busy_[tensor] : !busy_[3] && !busy_[4];
      if (is_free && next_step_[tensor] < steps) choices.push_back(tensor);
    }
    if (choices.empty()) {
      // Perhaps with tensors of its own still in flight.
      const bool all_announced = std::all_of(std::begin(next_step_), std::end(next_step_),
                                             [&](int step) { return step == steps; });
      if (all_announced) Join();
      return;
    }
    const int tensor = choices[job_.random()() % choices.size()];
    std::vector<Request> requests;
    for (int member = tensor; member <= (tensor == 3 ? 4 : tensor); ++member) {
      requests.push_back(data_.At(round, next_step_[member]++, member, rank_));
      busy_[member] = true;
    }
    job_.Announce(rank_, std::move(requests));
  }
  bool IsBack() {
    TakeAnswers();
    return has_joined_ && !waiting_;
  }
  void NextRound() {
    has_joined_ = false;
    std::fill(std::begin(next_step_), std::end(next_step_), 0);
  }

 private:
  void Join() {
    job_.Join(rank_);
    waiting_ = true;
    has_joined_ = true;
  }
  void TakeAnswers() {
    const auto& batches = job_.batches(rank_);
    for (; seen_ < batches.size(); ++seen_) {
      for (const Response& response : batches[seen_]) {
        ASSERT_NE(response.kind, ResponseKind::kError) << ResponseText(response);
        if (response.kind == ResponseKind::kAllJoined) waiting_ = false;
        if (response.kind != ResponseKind::kReady) continue;
        busy_[response.agreement->request.name[1] - '0'] = false;
      }
    }
  }

  const UnevenData& data_;
  SimulatedJob& job_;
  int rank_;
  int next_step_[kTensorCount] = {};
  bool busy_[kTensorCount] = {};
  bool waiting_ = false;
  bool has_joined_ = false;  // In this round.
  size_t seen_ = 0;
};

void RunRound(int round, std::vector<Trainer>& trainers, SimulatedJob& job) {
  bool done = false;
  for (int turn = 0; !done && !::testing::Test::HasFailure(); ++turn) {
    ASSERT_LT(turn, 10000) << "round " << round << " does not come to an end";
    for (int i = 0; i < job.size(); ++i) {
      trainers[job.random()() % trainers.size()].Act(round);
      for (uint32_t steps = job.random()() % 8; steps > 0; --steps) job.Progress();
    }
    done = true;
    for (Trainer& trainer : trainers) done = trainer.IsBack() && done;
  }
  for (Trainer& trainer : trainers) trainer.NextRound();
}

// Of one tensor, in order: the rows that each rank contributed, or how often it was ready.
void ExpectOutcome(const UnevenData& data, const SimulatedJob& job, int tensor, int rounds) {
  std::vector<std::vector<int64_t>> expected;
  for (int round = 0; round < rounds; ++round) {
    for (int step = 0; step < data.MostSteps(round, job.size()); ++step) {
      auto& rows = expected.emplace_back();
      for (int rank = 0; tensor == 1 && rank < job.size(); ++rank) {
        rows.push_back(step < data.Steps(round, rank) ? UnevenData::Rows(rank, step) : 0);
      }
    }
  }
  std::vector<std::vector<int64_t>> seen;
  for (const Batch& batch : job.batches(0)) {
    for (const Response& response : batch) {
      if (response.kind != ResponseKind::kReady) continue;
      if (response.agreement->request.name != "t" + std::to_string(tensor)) continue;
      seen.push_back(response.agreement->first_dims);
    }
  }
  EXPECT_EQ(seen, expected) << "t" << tensor;
}

struct Case {
  int size;
  int radix;
  int64_t capacity;
};

class JoinPropertyTest : public ::testing::TestWithParam<Case> {};

TEST_P(JoinPropertyTest, TheOthersGoOnAndAllComeBack) {
  const Case param = GetParam();
  const uint32_t seeds = param.size <= 5 ? 60 : 15;
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    constexpr int kRounds = 3;
    const UnevenData data{seed, seed % 3 != 0};
    SimulatedJob job(
        {.size = param.size, .radix = param.radix, .cache_capacity = param.capacity, .seed = seed});
    std::vector<Trainer> trainers;
    for (int rank = 0; rank < job.size(); ++rank) trainers.emplace_back(data, job, rank);
    for (int round = 0; round < kRounds; ++round) RunRound(round, trainers, job);
    job.RunUntilQuiet();
    for (int rank = 1; rank < job.size(); ++rank) ASSERT_EQ(job.Log(rank), job.Log(0)) << rank;
    for (int tensor = 0; tensor < kTensorCount; ++tensor) {
      ExpectOutcome(data, job, tensor, kRounds);
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Trees, JoinPropertyTest,
                         ::testing::Values(Case{1, 2, 16}, Case{2, 2, 16}, Case{3, 1, 16},
                                           Case{4, 2, 2}, Case{5, 2, 0}, Case{7, 2, 16},
                                           Case{8, 32, 3}, Case{13, 3, 16}),
                         [](const auto& test) {
                           return "size" + std::to_string(test.param.size) + "radix" +
                                  std::to_string(test.param.radix) + "cache" +
                                  std::to_string(test.param.capacity);
                         });

TEST(JoinTest, WhatNeedsARankThatHasJoinedIsAnErrorNamingIt) {
  SimulatedJob job({.size = 3, .names_hosts = true});
  job.Join(2);
  job.RunUntilQuiet();
  Request broadcast = MakeRequest("b");
  broadcast.op = OpKind::kBroadcast;
  broadcast.root_rank = 2;
  Request scaled = MakeRequest("p");
  scaled.reduce_op = ReduceOp::kProduct;
  scaled.prescale = 2;
  Request add = MakeRequest("a", {0});
  add.op = OpKind::kAddProcessSet;
  add.ranks = {0, 1};
  for (const Request& request : {broadcast, scaled, add}) {
    job.Announce(0, request);
    job.Announce(1, request);
  }
  Request send = MakeRequest("s");
  send.op = OpKind::kSendReceive;
  send.ranks = {0, 2};
  job.Announce(0, send);
  job.RunUntilQuiet();
  EXPECT_THAT(job.Errors(1),
              ElementsAre(HasSubstr("broadcast 'b' needs rank 2 (host h2), its root"),
                          HasSubstr("allreduce 'p' is a Product with a prescale factor"),
                          HasSubstr("add_process_set 'a' needs rank 2 (host h2)")));
  EXPECT_EQ(job.Errors(0).size(), 4u);
  EXPECT_THAT(job.Errors(0), ::testing::Contains(HasSubstr("send/recv 's' needs rank 2")));
  // From another root it works, and the one that has joined takes part.
  broadcast.root_rank = 0;
  job.Announce(0, broadcast);
  job.Announce(1, broadcast);
  job.RunUntilQuiet();
  EXPECT_THAT(job.Log(2), ElementsAre("ready b [4]", "|"));
}

TEST(JoinTest, SubmittingOrJoiningAgainMeanwhileIsRefused) {
  SimulatedJob job({.size = 2});
  job.Announce(1, MakeRequest("x"));
  job.Join(1);
  EXPECT_THAT(job.coordinator(1).Announce({MakeRequest("y")}, job.now).ToString(),
              HasSubstr("tensor 'y' was submitted after join()"));
  EXPECT_THAT(job.coordinator(1).Join().ToString(), HasSubstr("called already"));
  job.RunUntilQuiet();
  EXPECT_TRUE(job.Log(0).empty());  // What it has in flight comes first.
  job.Announce(0, MakeRequest("x"));
  job.Join(0);
  job.RunUntilQuiet();
  EXPECT_EQ(job.Log(1).front(), "ready x [4]");
  EXPECT_THAT(job.Log(1)[2], HasSubstr("all joined, last "));
  EXPECT_EQ(job.Log(0), job.Log(1));
  job.Announce(1, MakeRequest("y"));  // Back.
}

TEST(JoinTest, AStallDoesNotNameRanksThatHaveJoined) {
  SimulatedJob job({.size = 4, .radix = 1, .stall_warning = std::chrono::seconds(10)});
  job.Join(3);
  job.Announce(0, MakeRequest("x"));
  job.Announce(2, MakeRequest("x"));
  job.RunUntilQuiet();
  for (const int seconds : {6, 5}) {  // In between, inner vertices say who is missing.
    job.now += std::chrono::seconds(seconds);
    job.RunUntilQuiet();
  }
  ASSERT_EQ(job.Stalls(0).size(), 1u);
  EXPECT_THAT(job.Stalls(0)[0], HasSubstr("waits for rank 1"));
  EXPECT_THAT(job.Stalls(0)[0], ::testing::Not(HasSubstr("3")));
}

}  // namespace
}  // namespace mydist
