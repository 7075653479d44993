#include "algorithms/adasum.h"

#include <gtest/gtest.h>

#include <limits>

#include "algorithms/counting_transport.h"
#include "conformance/collectives_suite.h"
#include "conformance/deep.h"
#include "conformance/on_every_rank.h"

namespace mydist {
namespace {

using testing::Elements;
using testing::Get;
using testing::OnEveryRank;
using testing::Put;
// The result of all ranks when rank r contributes vectors[r].
std::vector<float> AdasumOf(const std::vector<std::vector<float>>& vectors) {
  std::vector<float> result;
  const int size = static_cast<int>(vectors.size());
  OnEveryRank(size, [&](Connection& connection) {
    Adasum adasum(connection.transport.get());
    std::vector<float> data = vectors[static_cast<size_t>(connection.rank)];
    const auto count = static_cast<int64_t>(data.size());
    ExpectOk(adasum.Allreduce(data.data(), {&count, 1}, {.op = ReduceOp::kAdasum}));
    if (connection.rank == size - 1) result = data;
  });
  return result;
}

TEST(AdasumValues, LeaveAVectorAloneAmongZeros) {
  const std::vector<float> vector = {1, -2, 3e-30f, 0.5f, 1e30f};
  for (size_t place = 0; place < 5; ++place) {
    std::vector<std::vector<float>> vectors(5, std::vector<float>(vector.size(), 0.0f));
    vectors[place] = vector;
    EXPECT_EQ(AdasumOf(vectors), vector) << "at rank " << place;
  }
}

// Worked by hand: a·b = 1, |a|² = 1, |b|² = 2, so a × 1/2 + b × 3/4; the third rank has no
// neighbour at the first level: c·r = 3/4, |c|² = 1, |r|² = 25/16 + 9/16 = 34/16.
TEST(AdasumValues, OfThreeRanks) {
  const std::vector<float> result = AdasumOf({{1, 0}, {1, 1}, {0, 1}});
  const double r_factor = 1 - 0.75 / (2 * 34.0 / 16);
  EXPECT_NEAR(result[0], 1.25 * r_factor, 1e-6);
  EXPECT_NEAR(result[1], 0.75 * r_factor + (1 - 0.75 / 2), 1e-6);
}

TEST(AdasumValues, ANanStaysInItsTensor) {
  OnEveryRank(3, [](Connection& connection) {
    Adasum adasum(connection.transport.get());
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> data = {1, connection.rank == 1 ? nan : 1.0f, 5};
    const std::vector<int64_t> counts = {2, 1};
    ExpectOk(adasum.Allreduce(data.data(), counts, {.op = ReduceOp::kAdasum}));
    EXPECT_TRUE(data[0] != data[0] && data[1] != data[1]);
    EXPECT_EQ(data[2], 5.0f);
  });
}

// 60000 is near the end of float16; two equal vectors are averaged without leaving it.
TEST(AdasumValues, HalvesDoNotOverflowOnTheWay) {
  OnEveryRank(4, [](Connection& connection) {
    Adasum adasum(connection.transport.get());
    Elements data(DataType::kFloat16, 9);
    for (int64_t i = 0; i < 9; ++i) Put(data, i, uint16_t{0x7b53});
    const int64_t count = 9;
    ExpectOk(adasum.Allreduce(data.data(), {&count, 1},
                              {.dtype = DataType::kFloat16, .op = ReduceOp::kAdasum}));
    for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(Get<uint16_t>(data, i), 0x7b53);
  });
}

TEST(AdasumTraffic, SendsTheMinimumOfBytesAndOneRoundPerLevel) {
  for (const int size : {2, 3, 4, 7}) {
    OnEveryRank(size, [&](Connection& connection) {
      testing::CountingTransport transport(*connection.transport);
      Adasum adasum(&transport);
      const int64_t count = 500003;
      Elements data = testing::ContributionOf(DataType::kFloat32, connection.rank, count);
      ExpectOk(adasum.Allreduce(data.data(), {&count, 1}, {.op = ReduceOp::kAdasum}));
      const double optimum = 2.0 * 4 * static_cast<double>(count) * (size - 1) / size;
      EXPECT_NEAR(static_cast<double>(transport.sent_bytes()), optimum, 4096);
      EXPECT_EQ(transport.exchange_count(), 2 + (size <= 2 ? 1 : size <= 4 ? 2 : 3));
    });
  }
}

TEST(AdasumTraffic, ScratchStopsGrowing) {
  OnEveryRank(3, [](Connection& connection) {
    Adasum adasum(connection.transport.get());
    Elements data = testing::ContributionOf(DataType::kBfloat16, connection.rank, 10000);
    const std::vector<int64_t> counts = {9000, 1000};
    const Reduction reduction{.dtype = DataType::kBfloat16, .op = ReduceOp::kAdasum};
    ExpectOk(adasum.Allreduce(data.data(), counts, reduction));
    const int64_t warm_capacity_bytes = adasum.scratch_capacity_bytes();
    EXPECT_LE(warm_capacity_bytes, 2 * 20000 + 4 * 10000 + 4 * 4096);
    ExpectOk(adasum.Allreduce(data.data(), counts, reduction));
    EXPECT_EQ(adasum.scratch_capacity_bytes(), warm_capacity_bytes);
  });
}

}  // namespace
}  // namespace mydist
