// Engines whose ranks share memory: tensors do not pass through the backend.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "runtime/engine_job.h"

namespace mydist {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EngineShmTest, TensorsPassThroughSharedMemory) {
  EngineJob job(3, {.shares_memory = true});
  job.OnEveryRank([](EngineRank& rank) {
    for (const size_t count : {1, 1000, 1000000}) {
      std::vector<float> data(count, static_cast<float>(rank.rank() + 1));
      const Status status = rank.Run(Allreduce("x" + std::to_string(count), &data));
      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_THAT(data, Each(6.0F));
    }
    const std::vector<int32_t> input(2, rank.rank());
    std::vector<int32_t> output;
    ASSERT_TRUE(
        rank.Run(WithOutput(OpKind::kAllgather, "gathered", Shape({2}), input, &output)).ok());
    EXPECT_THAT(output, ElementsAre(0, 0, 1, 1, 2, 2));
  });
}

// Sets share one arena: those that overlap use each other's slots in turn.
TEST(EngineShmTest, SoDoThoseOfProcessSets) {
  EngineJob job(4, {.shares_memory = true});
  const std::array<std::vector<int32_t>, 3> members = {{{1, 3}, {0, 2}, {0, 1, 3}}};
  job.OnEveryRank([&](EngineRank& rank) {
    std::array<ProcessSetId, 3> ids{};
    for (size_t i = 0; i < members.size(); ++i) {
      Submission add;
      add.request.name = "add";
      add.request.op = OpKind::kAddProcessSet;
      add.request.shape = Shape({0});
      add.request.ranks = members[i];
      add.on_numbers = [&ids, i](const std::vector<int64_t>& numbers) {
        ids[i] = static_cast<ProcessSetId>(numbers.at(0));
      };
      ASSERT_TRUE(rank.Run(std::move(add)).ok());
    }
    for (int step = 0; step < 20; ++step) {
      for (size_t i = 0; i < members.size(); ++i) {
        if (std::count(members[i].begin(), members[i].end(), rank.rank()) == 0) continue;
        std::vector<float> data(static_cast<size_t>(50000 * (step % 2) + 5),
                                static_cast<float>(rank.rank()));
        Submission submission = Allreduce("x", &data);
        submission.request.process_set = ids[i];
        const Status status = rank.Run(std::move(submission));
        ASSERT_TRUE(status.ok()) << status.ToString();
        EXPECT_THAT(
            data,
            Each(static_cast<float>(std::accumulate(members[i].begin(), members[i].end(), 0))));
      }
    }
  });
}

// Without shared memory the job of these tests would indeed fail.
TEST(EngineShmTest, TheBackendOfTheseTestsRefusesTensors) {
  RefusingTransport transport(std::move(ConnectLoopback(2)[0].transport), {"a", "a"});
  const uint8_t byte = 0;
  const SendTransfer send{1, &byte, 1};
  EXPECT_THAT(transport.Exchange({&send, 1}, {}).ToString(),
              HasSubstr("a tensor passed through the backend"));
}

}  // namespace
}  // namespace mydist
