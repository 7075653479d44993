// Process sets and ranks that have joined, through real engines over the loopback backend.
#include <gmock/gmock.h>

#include <numeric>

#include "engine/engine_job.h"

namespace mydist {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Submission In(ProcessSetId set, Submission submission) {
  submission.request.process_set = set;
  return submission;
}

Submission Rooted(OpKind op, const std::string& name, std::vector<float>* data, int32_t root) {
  Submission submission = Allreduce(name, data);
  submission.request.op = op;
  submission.request.root_rank = root;
  return submission;
}

bool Contains(const std::vector<int32_t>& ranks, int rank) {
  return std::count(ranks.begin(), ranks.end(), rank) > 0;
}

TEST(EngineSetsTest, CollectivesStayInsideTheirSet) {
  EngineJob job(4);
  const std::vector<std::vector<int32_t>> members = {{1, 3}, {0, 2}, {0, 1, 3}};
  job.OnEveryRank([&](EngineRank& rank) {
    std::vector<ProcessSetId> ids(members.size());
    for (size_t i = 0; i < members.size(); ++i) {
      ASSERT_TRUE(AddSet(rank, members[i], &ids[i]).ok());
      EXPECT_EQ(ids[i], static_cast<ProcessSetId>(i + 1));
    }
    for (int step = 0; step < 3; ++step) {
      for (size_t i = 0; i < members.size(); ++i) {
        std::vector<float> data(5, static_cast<float>(rank.rank() + 1));
        const Status status = rank.Run(In(ids[i], Allreduce("x", &data, ReduceOp::kAverage)));
        if (!Contains(members[i], rank.rank())) {
          EXPECT_THAT(status.ToString(), HasSubstr("is not a member of process set"));
          continue;
        }
        ASSERT_TRUE(status.ok()) << status.ToString();
        float sum = 0;
        for (const int32_t member : members[i]) sum += static_cast<float>(member + 1);
        EXPECT_THAT(data, Each(sum / static_cast<float>(members[i].size())));
      }
    }
  });
}

TEST(EngineSetsTest, ARemovedSetIsGoneOnEveryRank) {
  EngineJob job(3);
  job.OnEveryRank([&](EngineRank& rank) {
    ProcessSetId id = -1;
    ASSERT_TRUE(AddSet(rank, {0, 2}, &id).ok());
    if (rank.rank() != 1) EXPECT_TRUE(RemoveSet(rank, id).ok());
    // Everybody has seen it when this next common step is over.
    std::vector<float> data(1, 1.0F);
    EXPECT_TRUE(rank.Run(Allreduce("step", &data)).ok());
    EXPECT_THAT(rank.Run(In(id, Allreduce("x", &data))).ToString(),
                HasSubstr("is unknown or has been removed"));
    EXPECT_FALSE(rank.engine->GetProcessSet(id).ok());
    ASSERT_TRUE(AddSet(rank, {0, 2}, &id).ok());
    EXPECT_EQ(id, 2);
  });
}

TEST(EngineSetsTest, APairTalksWithoutTheOthers) {
  EngineJob job(3);
  job.OnEveryRank([&](EngineRank& rank) {
    if (rank.rank() == 1) return;
    std::vector<float> data(4, rank.rank() == 2 ? 7.0F : 0.0F);
    Submission message = Allreduce("message", &data);
    message.request.op = OpKind::kSendReceive;
    message.request.ranks = {2, 0};
    ASSERT_TRUE(rank.Run(std::move(message)).ok());
    EXPECT_THAT(data, Each(7.0F));
  });
}

TEST(EngineSetsTest, RootedCollectivesDeliverToTheirRoot) {
  EngineJob job(3);
  job.OnEveryRank([&](EngineRank& rank) {
    std::vector<float> data(4, static_cast<float>(rank.rank() + 1));
    Submission reduce = Rooted(OpKind::kReduce, "reduce", &data, 1);
    if (rank.rank() != 1) reduce.output = nullptr;
    ASSERT_TRUE(rank.Run(std::move(reduce)).ok());
    EXPECT_THAT(data, Each(rank.rank() == 1 ? 6.0F : static_cast<float>(rank.rank() + 1)));

    const std::vector<int32_t> rows(static_cast<size_t>(rank.rank()), rank.rank());
    std::vector<int32_t> gathered = {-5};
    Submission gather =
        WithOutput(OpKind::kGather, "gather", Shape({rank.rank()}), rows, &gathered);
    gather.request.root_rank = 2;
    ASSERT_TRUE(rank.Run(std::move(gather)).ok());
    EXPECT_EQ(gathered,
              rank.rank() == 2 ? (std::vector<int32_t>{1, 2, 2}) : (std::vector<int32_t>{-5}));

    const std::vector<int32_t> deal = {10, 11, 12, 13};
    std::vector<int32_t> dealt;
    Submission scatter = WithOutput(OpKind::kScatter, "scatter", Shape({4}), deal, &dealt);
    scatter.request.root_rank = 0;
    if (rank.rank() == 0) scatter.splits = {1, 0, 3};
    ASSERT_TRUE(rank.Run(std::move(scatter)).ok());
    const std::vector<std::vector<int32_t>> expected = {{10}, {}, {11, 12, 13}};
    EXPECT_EQ(dealt, expected[static_cast<size_t>(rank.rank())]);
  });
}

// Everything that ranks 0 and 1 do while rank 2 has joined, twice: new, and from the cache.
void WorkWithoutRank2(EngineRank& rank) {
  for (int step = 0; step < 3; ++step) {
    const auto own = static_cast<float>(rank.rank() + 3);
    for (const auto& [op, expected] :
         std::vector<std::pair<ReduceOp, float>>{{ReduceOp::kSum, 7.0F},
                                                 {ReduceOp::kMin, 3.0F},
                                                 {ReduceOp::kMax, 4.0F},
                                                 {ReduceOp::kProduct, 12.0F},
                                                 {ReduceOp::kAverage, 7.0F / 3.0F}}) {
      std::vector<float> data(6, own);
      const std::string name = "sum" + std::string(ReduceOpName(op));
      ASSERT_TRUE(rank.Run(Allreduce(name, &data, op)).ok());
      EXPECT_THAT(data, Each(expected)) << ReduceOpName(op);
    }
    const std::vector<int32_t> rows(static_cast<size_t>(rank.rank() + 1), rank.rank());
    std::vector<int32_t> output;
    ASSERT_TRUE(
        rank.Run(WithOutput(OpKind::kAllgather, "gather", Shape({rank.rank() + 1}), rows, &output))
            .ok());
    EXPECT_THAT(output, ElementsAre(0, 1, 1));
    Submission exchange = WithOutput(OpKind::kAlltoall, "exchange", Shape({3}), {5, 6, 7}, &output);
    const std::vector<int32_t> sent = {5 + rank.rank(), 6 + rank.rank(), 7 + rank.rank()};
    exchange.input = sent.data();
    exchange.splits = {1, 1, 1};
    ASSERT_TRUE(rank.Run(std::move(exchange)).ok());
    EXPECT_EQ(output,
              rank.rank() == 0 ? (std::vector<int32_t>{5, 6}) : (std::vector<int32_t>{6, 7}));
    Submission scatter = WithOutput(OpKind::kReducescatter, "scatter", Shape({3}), sent, &output);
    ASSERT_TRUE(rank.Run(std::move(scatter)).ok());
    EXPECT_THAT(output, ElementsAre(rank.rank() == 0 ? 11 : 13));
    std::vector<float> data(2, own);
    ASSERT_TRUE(rank.Run(Rooted(OpKind::kBroadcast, "broadcast", &data, 1)).ok());
    EXPECT_THAT(data, Each(4.0F));
    Submission barrier;
    barrier.request.name = "barrier";
    barrier.request.op = OpKind::kBarrier;
    barrier.request.shape = Shape({0});
    ASSERT_TRUE(rank.Run(std::move(barrier)).ok());
    // To one that has joined: its result is dropped.
    Submission reduce = Rooted(OpKind::kReduce, "reduce", &data, 2);
    reduce.output = nullptr;
    ASSERT_TRUE(rank.Run(std::move(reduce)).ok());
  }
}

TEST(EngineSetsTest, AJoinedRankTakesPartInEverything) {
  EngineJob job(3);
  for (int round = 0; round < 2; ++round) {
    job.OnEveryRank([&](EngineRank& rank) {
      // Cached from before somebody joins, with rows of every rank.
      const std::vector<int32_t> rows(static_cast<size_t>(rank.rank() + 1), rank.rank());
      std::vector<int32_t> output;
      for (int step = 0; step < 2; ++step) {
        ASSERT_TRUE(rank.Run(WithOutput(OpKind::kAllgather, "gather", Shape({rank.rank() + 1}),
                                        rows, &output))
                        .ok());
        EXPECT_THAT(output, ElementsAre(0, 1, 1, 2, 2, 2));
      }
      if (rank.rank() != 2) WorkWithoutRank2(rank);
      std::vector<int64_t> last;
      const auto joined =
          rank.engine->Join([&last](const std::vector<int64_t>& numbers) { last = numbers; });
      ASSERT_TRUE(rank.Wait(joined).ok());
      ASSERT_EQ(last.size(), 1u);
      EXPECT_NE(last[0], 2);
    });
  }
}

TEST(EngineSetsTest, ShuttingDownEndsAJoinThatOthersNeverFollow) {
  EngineJob job(2);
  Result<Handle> joined = job.rank(1).engine->Join({});
  ASSERT_TRUE(joined.ok());
  std::thread leaving([&] { job.rank(0).engine->Shutdown(); });
  EXPECT_THAT(job.rank(1).Wait(joined).ToString(), HasSubstr("rank 0"));
  job.rank(1).engine->Shutdown();
  leaving.join();
}

}  // namespace
}  // namespace mydist
