#include "planner/collectives_choice.h"

#include <gtest/gtest.h>

#include <vector>

#include "algorithms/rank_ordered_collectives.h"
#include "conformance/on_every_rank.h"

namespace mydist {
namespace {

TEST(PathProbeTest, EveryRankHearsTheSameNumbers) {
  constexpr int kSize = 3;
  std::vector<PathCosts> costs(kSize);
  testing::OnEveryRank(kSize, [&](Connection& connection) {
    RankOrderedCollectives collectives(connection.transport.get());
    std::vector<float> memory(kProbeBytes / sizeof(float));
    const Result<PathCosts> measured =
        MeasurePath({.small = &collectives,
                     .large = &collectives,
                     .memory = connection.rank == 0 ? memory.data() : nullptr,
                     .transport = connection.transport.get()});
    ASSERT_TRUE(measured.ok());
    costs[static_cast<size_t>(connection.rank)] = *measured;
    // The path is as good as new.
    float one = 1;
    ASSERT_TRUE(collectives.Allreduce(&one, 1, {.dtype = DataType::kFloat32}).ok());
    EXPECT_EQ(one, kSize);
  });
  for (const PathCosts& other : costs) {
    EXPECT_TRUE(other.measured());
    EXPECT_GT(other.latency, kWakeUps);
    EXPECT_EQ(other.latency, costs[0].latency);
    EXPECT_EQ(other.seconds_per_byte, costs[0].seconds_per_byte);
  }
}

TEST(PathProbeTest, AFailingPathIsAnError) {
  class Broken final : public Transport {
   public:
    int rank() const override { return 0; }
    int size() const override { return 2; }
    Status Exchange(std::span<const SendTransfer>, std::span<const ReceiveTransfer>) override {
      return Status::PeerLost("rank 1 is gone");
    }
  } transport;
  RankOrderedCollectives collectives(&transport);
  const Result<PathCosts> measured = MeasurePath({.small = &collectives, .large = &collectives});
  EXPECT_EQ(measured.status().code(), StatusCode::kPeerLost);
}

}  // namespace
}  // namespace mydist
