#include "algorithms/batch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "algorithms/counting_transport.h"
#include "algorithms/rank_ordered_collectives.h"
#include "conformance/every_collective_suite.h"
#include "conformance/on_every_rank.h"
#include "kernels/element.h"
#include "transport/factory.h"

namespace mydist {
namespace {

using testing::ContributionOf;
using testing::ContributionsOf;
using testing::Elements;
using testing::kPoison;
using testing::OnEveryRank;
using testing::PatternOf;

// Elements of the tensors of a batch: none, one, few, and many.
const std::vector<int64_t> kCounts = {3, 0, 1000, 1, 40001, 17};

// What the engine has on one rank to execute batches with, and the phases it was told.
struct Engine {
  explicit Engine(Connection& connection)
      : collectives(connection.transport.get()),
        context{.rank = connection.rank,
                .size = connection.size,
                .collectives = &collectives,
                .numbers = &collectives,
                .memory = &memory,
                .activity = [this](const char* activity) { activities.emplace_back(activity); }} {}

  RankOrderedCollectives collectives;
  FusionBuffer memory;
  std::vector<std::string> activities;
  BatchContext context;
};

class Batch : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Batch, ::testing::Values(1, 2, 3, 8));

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
    for (const DataType dtype : testing::kTypesOfEveryKind) {
      for (const ReduceOp op : testing::ReduceOpsOf(dtype)) {
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

// Float32 elements as `dtype`, and back.
Elements Narrowed(const Elements& wide, DataType dtype) {
  Elements narrow(dtype, wide.count());
  for (int64_t i = 0; i < wide.count(); ++i) {
    const auto value = testing::Get<float>(wide, i);
    testing::Put(narrow, i,
                 dtype == DataType::kFloat16 ? FloatToHalf(value) : FloatToBfloat16(value));
  }
  return narrow;
}
Elements Widened(const Elements& narrow) {
  Elements wide(DataType::kFloat32, narrow.count());
  for (int64_t i = 0; i < narrow.count(); ++i) {
    const auto bits = testing::Get<uint16_t>(narrow, i);
    testing::Put(wide, i,
                 narrow.dtype == DataType::kFloat16 ? HalfToFloat(bits) : Bfloat16ToFloat(bits));
  }
  return wide;
}

// Of the first `tensor_count` tensors every second one is float32, which ones differs by rank; the
// others are as they travel, and all ranks contribute what has been rounded.
class CompressedCase {
 public:
  CompressedCase(Connection& connection, const Reduction& reduction, size_t tensor_count,
                 bool is_in_place)
      : connection_(connection), reduction_(reduction), is_in_place_(is_in_place) {
    for (size_t t = 0; t < tensor_count; ++t) {
      inputs_.push_back(InputOf(t));
      outputs_.emplace_back(inputs_[t].dtype, kCounts[t], kPoison);
    }
  }

  void Run() {
    std::vector<BatchTensor> batch;
    for (size_t t = 0; t < inputs_.size(); ++t) {
      void* const output = (is_in_place_ ? inputs_ : outputs_)[t].data();
      batch.push_back({inputs_[t].data(), output, kCounts[t], IsWide(t)});
    }
    Engine engine(connection_);
    int64_t packed = 0;
    engine.context.pack_bytes = &packed;
    ExpectOk(ExecuteAllreduce(batch, reduction_, engine.context));
    EXPECT_TRUE(packed > 0 || inputs_.size() == 1);  // The one may be as it travels.
    for (size_t t = 0; t < inputs_.size(); ++t) Check(t);
  }

 private:
  bool IsWide(size_t t) const { return (t + static_cast<size_t>(connection_.rank)) % 2 == 0; }
  Elements InputOf(size_t t) const {
    Elements wide = ContributionOf(DataType::kFloat32, connection_.rank, kCounts[t], t);
    return IsWide(t) ? wide : Narrowed(wide, reduction_.dtype);
  }

  void Check(size_t t) const {
    SCOPED_TRACE("tensor " + std::to_string(t));
    EXPECT_TRUE(is_in_place_ || inputs_[t].bytes == InputOf(t).bytes) << "input was changed";
    std::vector<Elements> travelled =
        ContributionsOf(DataType::kFloat32, connection_.size, kCounts[t], t);
    for (Elements& one : travelled) one = Narrowed(one, reduction_.dtype);
    const Elements& got = (is_in_place_ ? inputs_ : outputs_)[t];
    const Elements result = IsWide(t) ? Narrowed(got, reduction_.dtype) : got;
    EXPECT_TRUE(!IsWide(t) || Widened(result).bytes == got.bytes) << "that has not travelled";
    testing::ExpectReduced(result, travelled, reduction_);
  }

  Connection& connection_;
  const Reduction reduction_;
  const bool is_in_place_;
  std::vector<Elements> inputs_;
  std::vector<Elements> outputs_;
};

// Allreduces of float32 that travel as 16 bits.
TEST_P(Batch, CompressedIsReducedAsItTravels) {
  OnEveryRank(size(), [](Connection& connection) {
    for (const DataType dtype : {DataType::kFloat16, DataType::kBfloat16}) {
      for (const ReduceOp op : {ReduceOp::kAverage, ReduceOp::kMax}) {
        for (const size_t tensor_count : {size_t{1}, kCounts.size()}) {
          for (const bool is_in_place : {false, true}) {
            CompressedCase(connection, {dtype, op, 0.5, 4.0}, tensor_count, is_in_place).Run();
          }
        }
      }
    }
  });
}

TEST_P(Batch, IsCompressedOnlyTo16Bits) {
  OnEveryRank(size(), [](Connection& connection) {
    Engine engine(connection);
    float value = 1.0F;
    const BatchTensor tensor{&value, &value, 1, true};
    const Status status =
        ExecuteAllreduce({&tensor, 1}, {.dtype = DataType::kFloat64}, engine.context);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "compression of float32 to float64 is not supported, expected float16 or bfloat16");
    EXPECT_EQ(value, 1.0F);
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
    ExpectError(scattered, StatusCode::kInvalidArgument, {"got reducescatter"});
    const BatchTensor tensor{data.data(), data.data(), 4};
    const Reduction integers{.dtype = DataType::kInt32, .op = ReduceOp::kAdasum};
    EXPECT_NE(ExecuteAllreduce({&tensor, 1}, integers, engine.context)
                  .message()
                  .find("Adasum has no meaning for dtype int32"),
              std::string::npos);
    EXPECT_TRUE(engine.activities.empty());
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
    FusionBuffer memory;
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
    ExpectError(status, StatusCode::kInternal,
                {"rank 1 announces " + std::to_string(announced) + " rows"});
    const DealTensor dealt{nullptr, 8, {}, [](int64_t) -> Result<void*> {
                             ADD_FAILURE() << "allocated for nonsense";
                             return nullptr;
                           }};
    const Status scattered = ExecuteScatter(dealt, 1, context);
    ExpectError(scattered, StatusCode::kInternal,
                {"rank 1 announces " + std::to_string(announced) + " rows of 8"});
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
  ExpectError(memory.status(), StatusCode::kInternal,
              {"out of memory: a buffer of 9223372036854775807 bytes is needed to fuse or reduce "
               "tensors; free memory on this host, run fewer ranks on it, or lower "
               "MYDIST_FUSION_THRESHOLD_MB"});
  EXPECT_EQ(buffer.capacity_bytes(), 0);
  EXPECT_TRUE(buffer.Reserve(10).ok());
}

}  // namespace
}  // namespace mydist
