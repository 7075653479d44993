// Batches of one root, between two ranks, and of adaptive summation.
#include <gtest/gtest.h>

#include "algorithms/batch_engine.h"
#include "algorithms/counting_transport.h"
#include "conformance/adasum_reference.h"
#include "conformance/collectives_suite.h"
#include "conformance/on_every_rank.h"
#include "kernels/element.h"

namespace mydist {
namespace {

using testing::BatchEngine;
using testing::ContributionOf;
using testing::ContributionsOf;
using testing::Elements;
using testing::ExpectOk;
using testing::kPoison;
using testing::OnEveryRank;
using testing::PatternOf;

class RootedBatch : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, RootedBatch, ::testing::Values(1, 2, 3, 4));

TEST_P(RootedBatch, ReduceAveragesAtTheRoot) {
  OnEveryRank(size(), [&](Connection& connection) {
    BatchEngine engine(connection);
    const int64_t count = 40001;
    const Reduction reduction{DataType::kBfloat16, ReduceOp::kAverage, 0.5, 4.0};
    for (int root = 0; root < size(); ++root) {
      const Elements input = ContributionOf(reduction.dtype, connection.rank, count);
      const bool is_root = connection.rank == root;
      Elements output(reduction.dtype, is_root ? count : 0, kPoison);
      const BatchTensor tensor{input.data(), is_root ? output.data() : nullptr, count};
      ExpectOk(ExecuteReduce(tensor, reduction, root, engine.context));
      EXPECT_TRUE(input.bytes == ContributionOf(reduction.dtype, connection.rank, count).bytes);
      if (is_root) {
        testing::ExpectReduced(output, ContributionsOf(reduction.dtype, size(), count), reduction);
      }
    }
    EXPECT_EQ(engine.activities.front(), kReduceActivity);
  });
}

TEST_P(RootedBatch, GatherOfUnevenTensors) {
  OnEveryRank(size(), [&](Connection& connection) {
    BatchEngine engine(connection);
    for (int root = 0; root < size(); ++root) {
      const auto counts = testing::UnevenCounts(size(), 3000, static_cast<uint64_t>(root));
      std::vector<uint8_t> expected;
      for (int rank = 0; rank < size(); ++rank) {
        const auto part = PatternOf(rank, root, counts[static_cast<size_t>(rank)]);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const auto input =
          PatternOf(connection.rank, root, counts[static_cast<size_t>(connection.rank)]);
      const bool is_root = connection.rank == root;
      std::vector<uint8_t> output(is_root ? expected.size() : 0, kPoison);
      ExpectOk(ExecuteGather({input.data(), is_root ? output.data() : nullptr, counts}, root,
                             engine.context));
      if (is_root) EXPECT_TRUE(output == expected);
    }
  });
}

// rows[r] rows of row_bytes go from the root to rank r.
void CheckScatter(Connection& connection, const std::vector<int64_t>& rows, int64_t row_bytes,
                  int root) {
  BatchEngine engine(connection);
  const bool is_root = connection.rank == root;
  const int64_t own_rows = rows[static_cast<size_t>(connection.rank)];
  std::vector<uint8_t> input;
  for (int rank = 0; rank < connection.size && is_root; ++rank) {
    const auto part = PatternOf(root, rank, rows[static_cast<size_t>(rank)] * row_bytes);
    input.insert(input.end(), part.begin(), part.end());
  }
  std::vector<uint8_t> output;
  const DealTensor tensor{.input = is_root ? input.data() : nullptr,
                          .row_bytes = row_bytes,
                          .send_rows = is_root ? rows : std::vector<int64_t>{},
                          .allocate = [&](int64_t announced) -> Result<void*> {
                            EXPECT_EQ(announced, own_rows);
                            output.assign(static_cast<size_t>(announced * row_bytes), kPoison);
                            return static_cast<void*>(output.data());
                          }};
  ExpectOk(ExecuteScatter(tensor, root, engine.context));
  EXPECT_TRUE(output == PatternOf(root, connection.rank, own_rows * row_bytes));
  EXPECT_EQ(engine.activities, (std::vector<std::string>{kSplitsActivity, kMoveActivity}));
}

TEST_P(RootedBatch, ScatterTellsWhatIsReceived) {
  OnEveryRank(size(), [&](Connection& connection) {
    for (int root = 0; root < size(); ++root) {
      for (uint64_t seed = 0; seed < 4; ++seed) {
        const auto rows = testing::UnevenCounts(size(), 500, seed);
        for (const int64_t row_bytes : {12, 1, 0}) CheckScatter(connection, rows, row_bytes, root);
      }
    }
  });
}

// A ring of pairs; only the two ranks of a pair call anything.
TEST_P(RootedBatch, SendReachesItsPeer) {
  OnEveryRank(size(), [&](Connection& connection) {
    BatchEngine engine(connection);
    for (int from = 0; from < size() && size() > 1; ++from) {
      const int to = (from + 1) % size();
      for (const int64_t bytes : {0, 1, 100000}) {
        const std::vector<uint8_t> expected = PatternOf(from, to, bytes);
        std::vector<uint8_t> output(expected.size(), kPoison);
        if (connection.rank == from) {
          ExpectOk(ExecuteSend(expected.data(), bytes, to, engine.context));
        } else if (connection.rank == to) {
          ExpectOk(ExecuteReceive(output.data(), bytes, from, engine.context));
          EXPECT_TRUE(output == expected);
        }
      }
    }
  });
}

TEST_P(RootedBatch, AdasumFusedEqualsUnfusedAndTheFormula) {
  const std::vector<int64_t> counts = {3, 0, 1000, 1, 40001, 17};
  OnEveryRank(size(), [&](Connection& connection) {
    BatchEngine engine(connection);
    for (const DataType dtype : {DataType::kFloat16, DataType::kFloat32, DataType::kFloat64}) {
      const Reduction reduction{dtype, ReduceOp::kAdasum, 0.5, 3.0};
      std::vector<Elements> inputs;
      std::vector<Elements> fused;
      std::vector<BatchTensor> batch;
      for (size_t t = 0; t < counts.size(); ++t) {
        inputs.push_back(ContributionOf(dtype, connection.rank, counts[t], t));
        fused.emplace_back(dtype, counts[t], kPoison);
      }
      for (size_t t = 0; t < counts.size(); ++t) {
        batch.push_back({inputs[t].data(), fused[t].data(), counts[t]});
      }
      ExpectOk(ExecuteAllreduce(batch, reduction, engine.context));
      for (size_t t = 0; t < counts.size(); ++t) {
        Elements alone(dtype, counts[t], kPoison);
        batch[t].output = alone.data();
        ExpectOk(ExecuteAllreduce({&batch[t], 1}, reduction, engine.context));
        EXPECT_TRUE(fused[t].bytes == alone.bytes) << DataTypeName(dtype) << " tensor " << t;
        EXPECT_TRUE(inputs[t].bytes == ContributionOf(dtype, connection.rank, counts[t], t).bytes);
        testing::ExpectAdasum(alone, ContributionsOf(dtype, size(), counts[t], t), reduction);
      }
    }
  });
}

TEST(RootedBatchErrors, AnAllocationThatFailsEndsTheScatter) {
  OnEveryRank(1, [](Connection& connection) {
    BatchEngine engine(connection);
    const uint8_t byte = 1;
    const DealTensor tensor{&byte, 1, {1}, [](int64_t) -> Result<void*> {
                              return Status::Internal("no memory for you");
                            }};
    EXPECT_EQ(ExecuteScatter(tensor, 0, engine.context).message(), "no memory for you");
  });
}

}  // namespace
}  // namespace mydist
