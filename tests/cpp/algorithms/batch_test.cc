#include "algorithms/batch.h"

#include <gtest/gtest.h>

#include <cstring>

#include "algorithms/batch_engine.h"
#include "algorithms/counting_transport.h"
#include "conformance/collectives_suite.h"
#include "conformance/on_every_rank.h"
#include "kernels/element.h"

namespace mydist {
namespace {

using Engine = testing::BatchEngine;
using testing::ContributionOf;
using testing::ContributionsOf;
using testing::Elements;
using testing::ExpectOk;
using testing::kCounts;
using testing::kPoison;
using testing::OnEveryRank;
using testing::PatternOf;

using Batch = testing::BatchRanks;
INSTANTIATE_TEST_SUITE_P(Ranks, Batch, testing::kBatchRanks);

// Inputs and poisoned outputs of one rank, told apart by salt.
struct Tensors {
  std::vector<Elements> inputs;
  std::vector<Elements> outputs;
  std::vector<BatchTensor> batch;

  Tensors(DataType dtype, int rank) {
    for (size_t t = 0; t < kCounts.size(); ++t) {
      inputs.push_back(ContributionOf(dtype, rank, kCounts[t], t));
      outputs.emplace_back(dtype, kCounts[t], kPoison);
    }
    for (size_t t = 0; t < kCounts.size(); ++t) {
      batch.push_back({inputs[t].data(), outputs[t].data(), kCounts[t]});
    }
  }
};

TEST_P(Batch, FusedAllreduceEqualsUnfusedBitwise) {
  OnEveryRank(size(), [](Connection& connection) {
    Engine engine(connection);
    for (const DataType dtype : testing::kAllDataTypes) {
      for (const ReduceOp op : testing::kAllReduceOps) {
        if (!HasMeaning(op, dtype)) continue;
        const Reduction reduction{.dtype = dtype, .op = op};
        Tensors fused(dtype, connection.rank);
        Tensors single(dtype, connection.rank);
        ExpectOk(ExecuteAllreduce(fused.batch, reduction, engine.context));
        for (size_t t = 0; t < kCounts.size(); ++t) {
          ExpectOk(ExecuteAllreduce({&single.batch[t], 1}, reduction, engine.context));
          EXPECT_TRUE(fused.outputs[t].bytes == single.outputs[t].bytes)
              << ReduceOpName(op) << " " << DataTypeName(dtype) << " tensor " << t;
          EXPECT_TRUE(fused.inputs[t].bytes ==
                      ContributionOf(dtype, connection.rank, kCounts[t], t).bytes);
        }
      }
    }
  });
}

TEST_P(Batch, AllreduceAveragesAndScales) {
  OnEveryRank(size(), [&](Connection& connection) {
    Engine engine(connection);
    for (const DataType dtype : {DataType::kFloat16, DataType::kFloat32, DataType::kInt32}) {
      const Reduction reduction{dtype, ReduceOp::kAverage, 0.5, 4.0};
      Tensors tensors(dtype, connection.rank);
      ExpectOk(ExecuteAllreduce(tensors.batch, reduction, engine.context));
      for (size_t t = 0; t < kCounts.size(); ++t) {
        testing::ExpectReduced(tensors.outputs[t], ContributionsOf(dtype, size(), kCounts[t], t),
                               reduction);
      }
    }
  });
}

// Rank r contributes counts[t][r] bytes to tensor t; some contribute nothing.
void CheckAllgather(Connection& connection, const std::vector<std::vector<int64_t>>& counts) {
  Engine engine(connection);
  const int size = connection.size;
  const auto own = static_cast<size_t>(connection.rank);
  std::vector<std::vector<uint8_t>> inputs;
  std::vector<std::vector<uint8_t>> outputs;
  std::vector<GatherTensor> tensors;
  for (size_t t = 0; t < counts.size(); ++t) {
    inputs.push_back(PatternOf(connection.rank, static_cast<int>(t), counts[t][own]));
    outputs.emplace_back(static_cast<size_t>(Total(counts[t])), kPoison);
  }
  for (size_t t = 0; t < counts.size(); ++t) {
    tensors.push_back({inputs[t].data(), outputs[t].data(), counts[t]});
  }
  ExpectOk(ExecuteAllgather(tensors, engine.context));
  for (size_t t = 0; t < counts.size(); ++t) {
    std::vector<uint8_t> expected;
    for (int rank = 0; rank < size; ++rank) {
      const auto part = PatternOf(rank, static_cast<int>(t), counts[t][static_cast<size_t>(rank)]);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_TRUE(outputs[t] == expected) << "tensor " << t;
  }
}

TEST_P(Batch, AllgatherOfUnevenTensors) {
  OnEveryRank(size(), [&](Connection& connection) {
    std::vector<std::vector<int64_t>> counts;
    for (uint64_t t = 0; t < 5; ++t) counts.push_back(testing::UnevenCounts(size(), 3000, t));
    CheckAllgather(connection, counts);
    CheckAllgather(connection, {counts[0]});
    const std::vector<int64_t> nothing(static_cast<size_t>(size()), 0);
    CheckAllgather(connection, {nothing, counts[1], nothing});
    CheckAllgather(connection, {nothing, nothing});
  });
}

// The tensors of kCounts in one piece of memory, from `gap` elements apart, in place.
struct Neighbours {
  Elements memory;
  std::vector<BatchTensor> batch;

  Neighbours(DataType dtype, int rank, int64_t gap)
      : memory(dtype, Total(kCounts) + gap * static_cast<int64_t>(kCounts.size()), kPoison) {
    auto* place = static_cast<uint8_t*>(memory.data());
    for (size_t t = 0; t < kCounts.size(); ++t) {
      Elements input = ContributionOf(dtype, rank, kCounts[t], t);
      if (kCounts[t] > 0) std::memcpy(place, input.data(), input.bytes.size());
      batch.push_back({place, place, kCounts[t]});
      place += (kCounts[t] + gap) * SizeOf(dtype);
    }
  }
};

TEST_P(Batch, NeighboursAreReducedWhereTheyLie) {
  OnEveryRank(size(), [](Connection& connection) {
    for (const ReduceOp op : {ReduceOp::kAverage, ReduceOp::kAdasum}) {
      const Reduction reduction{.dtype = DataType::kFloat32, .op = op};
      Engine apart(connection);
      Tensors expected(reduction.dtype, connection.rank);
      ExpectOk(ExecuteAllreduce(expected.batch, reduction, apart.context));
      // Rank 0 has to pack what the others have side by side; nobody notices.
      for (const int64_t gap : {int64_t{0}, int64_t{connection.rank == 0 ? 1 : 0}}) {
        Engine engine(connection);
        int64_t pack_bytes = 0;
        engine.context.pack_bytes = &pack_bytes;
        Neighbours neighbours(reduction.dtype, connection.rank, gap);
        ExpectOk(ExecuteAllreduce(neighbours.batch, reduction, engine.context));
        for (size_t t = 0; t < kCounts.size(); ++t) {
          if (kCounts[t] == 0) continue;
          EXPECT_EQ(std::memcmp(neighbours.batch[t].output, expected.outputs[t].data(),
                                expected.outputs[t].bytes.size()),
                    0)
              << "tensor " << t << ", gap " << gap;
        }
        using Names = std::vector<std::string>;
        EXPECT_EQ(engine.activities,
                  gap == 0 ? Names({kReduceActivity})
                           : Names({kPackActivity, kReduceActivity, kUnpackActivity}));
        EXPECT_EQ(pack_bytes, gap == 0 ? 0 : Total(kCounts) * 4);
        EXPECT_EQ(engine.memory.capacity_bytes() > 0, gap > 0);
      }
    }
  });
}

TEST_P(Batch, OutputsInOrderCountAsPackedUnlessInputsLieAmongThem) {
  OnEveryRank(size(), [](Connection& connection) {
    using Numbers = std::vector<int32_t>;
    using Names = std::vector<std::string>;
    const Names packing = {kPackActivity, kReduceActivity, kUnpackActivity};
    const Names copying = {kCopyActivity, kReduceActivity};
    const int32_t n = connection.size;
    Numbers memory = {1, 2, 3, 4};
    Numbers apart(4, 0);
    const auto run = [&](const std::vector<BatchTensor>& batch) {
      Engine engine(connection);
      const Reduction reduction{.dtype = DataType::kInt32, .op = ReduceOp::kSum};
      ExpectOk(ExecuteAllreduce(batch, reduction, engine.context));
      return engine.activities;
    };
    EXPECT_EQ(run({{&memory[2], &memory[2], 2}, {&memory[0], &memory[0], 2}}), packing);
    EXPECT_EQ(memory, (Numbers{n, 2 * n, 3 * n, 4 * n}));
    EXPECT_EQ(run({{&memory[0], &apart[0], 2}, {&memory[2], &apart[2], 2}}), copying);
    EXPECT_EQ(apart, (Numbers{n * n, 2 * n * n, 3 * n * n, 4 * n * n}));
    EXPECT_EQ(run({{nullptr, nullptr, 0}, {&memory[0], &memory[0], 4}}), Names{kReduceActivity});
    EXPECT_EQ(memory, apart);
    memory = {1, 2, 0, 0};
    apart = {5, 6, 7, 8};
    EXPECT_EQ(run({{&memory[0], &memory[0], 1}, {&apart[1], &memory[1], 3}}), copying);
    EXPECT_EQ(memory, (Numbers{n, 6 * n, 7 * n, 8 * n}));
    memory = {1, 2, 3, 4};
    EXPECT_EQ(run({{&memory[1], &memory[0], 1}, {&apart[1], &memory[1], 3}}), packing);
    EXPECT_EQ(memory, (Numbers{2 * n, 6 * n, 7 * n, 8 * n}));
  });
}

TEST_P(Batch, FusedReducescatterOfUnevenTensors) {
  OnEveryRank(size(), [&](Connection& connection) {
    Engine engine(connection);
    const auto own = static_cast<size_t>(connection.rank);
    for (const size_t tensor_count : {size_t{1}, size_t{4}}) {
      const Reduction reduction{.dtype = DataType::kBfloat16, .op = ReduceOp::kAverage};
      std::vector<Elements> inputs;
      std::vector<Elements> outputs;
      std::vector<ScatterTensor> tensors;
      for (size_t t = 0; t < tensor_count; ++t) {
        const auto counts = ScatterRowCounts(static_cast<int64_t>(t) * 1003, size());
        inputs.push_back(ContributionOf(reduction.dtype, connection.rank, Total(counts), t));
        outputs.emplace_back(reduction.dtype, counts[own], kPoison);
        tensors.push_back({nullptr, nullptr, counts});
      }
      for (size_t t = 0; t < tensor_count; ++t) {
        tensors[t].input = inputs[t].data();
        tensors[t].output = outputs[t].data();
      }
      ExpectOk(ExecuteReducescatter(tensors, reduction, engine.context));
      for (size_t t = 0; t < tensor_count; ++t) {
        const auto& counts = tensors[t].element_counts;
        testing::ExpectReduced(outputs[t],
                               ContributionsOf(reduction.dtype, size(), Total(counts), t),
                               reduction, OffsetOf(counts, connection.rank));
      }
    }
  });
}

TEST(BatchOfOne, ReportsItsPhasesAndUsesNoFusionBuffer) {
  OnEveryRank(2, [](Connection& connection) {
    Engine engine(connection);
    Elements input = ContributionOf(DataType::kFloat32, connection.rank, 10);
    Elements output(DataType::kFloat32, 10);
    const BatchTensor out_of_place{input.data(), output.data(), 10};
    const BatchTensor in_place{input.data(), input.data(), 10};
    ExpectOk(ExecuteAllreduce({&out_of_place, 1}, {}, engine.context));
    EXPECT_EQ(engine.activities, (std::vector<std::string>{kCopyActivity, kReduceActivity}));
    engine.activities.clear();
    ExpectOk(ExecuteAllreduce({&in_place, 1}, {}, engine.context));
    EXPECT_EQ(engine.activities, std::vector<std::string>{kReduceActivity});
    engine.activities.clear();
    const BatchTensor both[] = {in_place, out_of_place};
    ExpectOk(ExecuteAllreduce({both, 1}, {}, engine.context));
    EXPECT_EQ(engine.memory.capacity_bytes(), 0);
  });
}

TEST(BatchOfTwo, ReportsItsPhasesAndSendsOneTensorsWorth) {
  OnEveryRank(2, [](Connection& connection) {
    testing::CountingTransport transport(*connection.transport);
    Engine engine(connection);
    RankOrderedCollectives collectives(&transport);
    engine.context.collectives = &collectives;
    Tensors tensors(DataType::kFloat32, connection.rank);
    ExpectOk(ExecuteAllreduce(tensors.batch, {}, engine.context));
    EXPECT_EQ(engine.activities,
              (std::vector<std::string>{kPackActivity, kReduceActivity, kUnpackActivity}));
    EXPECT_NEAR(static_cast<double>(transport.sent_bytes()),
                4.0 * static_cast<double>(Total(kCounts)), 128);
  });
}

TEST(BatchErrors, MeaninglessReductionsMoveNothing) {
  OnEveryRank(2, [](Connection& connection) {
    Engine engine(connection);
    Elements data(DataType::kComplex64, 4);
    const BatchTensor tensor{data.data(), data.data(), 4};
    const Reduction order{.dtype = DataType::kComplex64, .op = ReduceOp::kMax};
    EXPECT_EQ(ExecuteAllreduce({&tensor, 1}, order, engine.context).code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(ExecuteReduce(tensor, order, 0, engine.context).code(), StatusCode::kInvalidArgument);
    const ScatterTensor scatter{data.data(), data.data(), {2, 2}};
    EXPECT_EQ(ExecuteReducescatter({&scatter, 1}, order, engine.context).code(),
              StatusCode::kInvalidArgument);
    EXPECT_TRUE(engine.activities.empty());
  });
}

TEST(BatchErrors, AdasumIsAnAllreduce) {
  OnEveryRank(2, [](Connection& connection) {
    Engine engine(connection);
    Elements data(DataType::kFloat32, 4);
    const Reduction adasum{.op = ReduceOp::kAdasum};
    const Status reduced = ExecuteReduce({data.data(), data.data(), 4}, adasum, 0, engine.context);
    EXPECT_EQ(reduced.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(reduced.message(),
              "reduce op Adasum works with allreduce only, got reduce; call "
              "allreduce, or use Average or Sum");
    const ScatterTensor scatter{data.data(), data.data(), {2, 2}};
    const Status scattered = ExecuteReducescatter({&scatter, 1}, adasum, engine.context);
    EXPECT_EQ(scattered.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(scattered.message().find("got reducescatter"), std::string::npos);
    const BatchTensor tensor{data.data(), data.data(), 4};
    const Reduction integers{.dtype = DataType::kInt32, .op = ReduceOp::kAdasum};
    EXPECT_NE(ExecuteAllreduce({&tensor, 1}, integers, engine.context)
                  .message()
                  .find("Adasum has no meaning for dtype int32"),
              std::string::npos);
    EXPECT_TRUE(engine.activities.empty());
  });
}

TEST(BatchErrors, AnAllocationThatFailsEndsTheAlltoall) {
  OnEveryRank(1, [](Connection& connection) {
    Engine engine(connection);
    const uint8_t byte = 1;
    const AlltoallTensor tensor{&byte, 1, {1}, [](std::span<const int64_t>) -> Result<void*> {
                                  return Status::Internal("no memory for you");
                                }};
    EXPECT_EQ(ExecuteAlltoall(tensor, engine.context).message(), "no memory for you");
  });
}

// A peer that announces nonsense: the numbers come from the other side and are not to be trusted.
class LyingCollectives final : public Collectives {
 public:
  explicit LyingCollectives(int64_t announced) : announced_(announced) {}

  bool Supports(const BatchTraits&) const override { return true; }
  Status Allgather(const void*, void*, std::span<const int64_t>) override { return Status::Ok(); }
  Status Alltoall(const void*, std::span<const int64_t>, void* output,
                  std::span<const int64_t>) override {
    static_cast<int64_t*>(output)[1] = announced_;
    return Status::Ok();
  }
  Status Scatter(const void*, std::span<const int64_t>, void* output, int) override {
    *static_cast<int64_t*>(output) = announced_;
    return Status::Ok();
  }

 private:
  const int64_t announced_;
};

TEST(BatchErrors, ImpossibleSplitsOfAPeerAreRefused) {
  for (const int64_t announced : {int64_t{-5}, int64_t{1} << 60}) {
    LyingCollectives collectives(announced);
    HostMemory memory;
    const BatchContext context{.rank = 0,
                               .size = 2,
                               .collectives = &collectives,
                               .numbers = &collectives,
                               .memory = &memory,
                               .activity = {}};
    const AlltoallTensor tensor{nullptr, 8, {0, 0}, [](std::span<const int64_t>) -> Result<void*> {
                                  ADD_FAILURE() << "allocated for nonsense";
                                  return nullptr;
                                }};
    const Status status = ExecuteAlltoall(tensor, context);
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_NE(status.message().find("rank 1 announces " + std::to_string(announced) + " rows"),
              std::string::npos);
    const DealTensor dealt{nullptr, 8, {}, [](int64_t) -> Result<void*> {
                             ADD_FAILURE() << "allocated for nonsense";
                             return nullptr;
                           }};
    const Status scattered = ExecuteScatter(dealt, 1, context);
    EXPECT_EQ(scattered.code(), StatusCode::kInternal);
    EXPECT_NE(
        scattered.message().find("rank 1 announces " + std::to_string(announced) + " rows of 8"),
        std::string::npos);
  }
}

TEST(FusionBufferTest, GrowsAlignedAndNeverShrinks) {
  FusionBuffer buffer;
  EXPECT_EQ(buffer.Reserve(0).value(), nullptr);
  uint8_t* small = buffer.Reserve(100).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small) % FusionBuffer::kAlignmentBytes, 0u);
  const int64_t capacity_bytes = buffer.capacity_bytes();
  EXPECT_GE(capacity_bytes, 100);
  EXPECT_EQ(buffer.Reserve(50).value(), small);
  EXPECT_EQ(buffer.capacity_bytes(), capacity_bytes);
  uint8_t* large = buffer.Reserve(1000000).value();
  large[999999] = 1;
  EXPECT_GE(buffer.capacity_bytes(), 1000000);
}

TEST(FusionBufferTest, TellsWhenThereIsNoMemory) {
  FusionBuffer buffer;
  const auto memory = buffer.Reserve(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(memory.status().code(), StatusCode::kInternal);
  EXPECT_NE(memory.status().message().find("9223372036854775807 bytes"), std::string::npos);
  EXPECT_EQ(buffer.capacity_bytes(), 0);
  EXPECT_TRUE(buffer.Reserve(10).ok());
}

}  // namespace
}  // namespace mydist
