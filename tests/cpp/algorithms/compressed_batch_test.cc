// Allreduces of float32 that travel as 16 bits.
#include <gtest/gtest.h>

#include "algorithms/batch.h"
#include "algorithms/batch_engine.h"
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
using testing::ExpectReduced;
using testing::kCounts;
using testing::kPoison;
using testing::OnEveryRank;

using CompressedBatch = testing::BatchRanks;
INSTANTIATE_TEST_SUITE_P(Ranks, CompressedBatch, testing::kBatchRanks);

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
    ExpectReduced(result, travelled, reduction_);
  }

  Connection& connection_;
  const Reduction reduction_;
  const bool is_in_place_;
  std::vector<Elements> inputs_;
  std::vector<Elements> outputs_;
};

TEST_P(CompressedBatch, IsReducedAsItTravels) {
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

TEST_P(CompressedBatch, OnlyTo16Bits) {
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

}  // namespace
}  // namespace mydist
