// The kernels of every path this CPU has: the same bits as the portable ones for any input.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "conformance/reduction_reference.h"
#include "conformance/status_checks.h"
#include "kernels/simd/simd_path.h"

namespace mydist::simd {
namespace {

using ::mydist::testing::Elements;
using ::mydist::testing::Get;
using ::mydist::testing::Put;
using ::mydist::testing::Scramble;

constexpr uint8_t kGuard = 0xEE;

struct FoldCase {
  Reduction reduction;
  int size;
  int64_t count;
  int64_t shift;  // Elements between the start of the memory and the first one reduced.
};

// Any bits at all: NaN with payloads, infinities, subnormals, both zeros.
Elements AnyBits(DataType dtype, int64_t count, uint64_t salt) {
  Elements elements(dtype, count);
  for (size_t i = 0; i < elements.bytes.size(); ++i) {
    elements.bytes[i] = static_cast<uint8_t>(Scramble(i ^ salt << 32));
  }
  // Random bits are seldom special: every fifth element has a special pattern in its high bytes.
  constexpr std::array<uint16_t, 8> kSpecials = {0x7fc0, 0xffc1, 0x7f80, 0x7c00,
                                                 0xfe00, 0x8000, 0x0001, 0x7ff0};
  const int64_t element_bytes = SizeOf(dtype);
  for (int64_t i = 0; element_bytes >= 2 && i < count; i += 5) {
    const uint16_t special = kSpecials[Scramble(static_cast<uint64_t>(i) + salt) % 8];
    std::memcpy(&elements.bytes[static_cast<size_t>((i + 1) * element_bytes - 2)], &special, 2);
  }
  return elements;
}

FoldCall CallOf(const Reduction& reduction, int64_t count) {
  return {.sources = nullptr,
          .source_count = 0,
          .outputs = nullptr,
          .output_count = 0,
          .count = count,
          .dtype = reduction.dtype,
          .op = reduction.op,
          .prescale = reduction.prescale,
          .postscale = reduction.postscale,
          .divisor = reduction.divisor};
}

template <typename Pointer>
std::vector<Pointer> PointersTo(std::vector<Elements>& tensors) {
  std::vector<Pointer> pointers;
  for (Elements& tensor : tensors) pointers.push_back(tensor.data());
  return pointers;
}

// The result in memory of its own, guarded by bytes that must stay.
Elements Folded(const Kernels& kernels, const std::vector<Elements>& inputs, const FoldCase& fold) {
  const DataType dtype = fold.reduction.dtype;
  const int64_t element_bytes = SizeOf(dtype);
  std::vector<const void*> sources;
  for (const Elements& input : inputs) {
    sources.push_back(input.bytes.data() + fold.shift * element_bytes);
  }
  Elements output(dtype, fold.shift + fold.count + 8, kGuard);
  void* target = &output.bytes[static_cast<size_t>(fold.shift * element_bytes)];
  FoldCall call = CallOf(fold.reduction, fold.count);
  call.sources = sources.data();
  call.source_count = sources.size();
  call.outputs = &target;
  call.output_count = 1;
  kernels.fold(call);
  return output;
}

// Bytes before and after what a fold writes.
bool GuardsStand(const Elements& output, const FoldCase& fold) {
  const int64_t element_bytes = SizeOf(output.dtype);
  const auto is_guard = [](uint8_t byte) { return byte == kGuard; };
  const auto first = output.bytes.begin() + fold.shift * element_bytes;
  return std::all_of(output.bytes.begin(), first, is_guard) &&
         std::all_of(first + fold.count * element_bytes, output.bytes.end(), is_guard);
}

std::string TextOf(const FoldCase& fold) {
  return std::string(ReduceOpName(fold.reduction.op)) + " of " +
         std::string(DataTypeName(fold.reduction.dtype)) + ", " + std::to_string(fold.size) +
         " sources, " + std::to_string(fold.count) + " elements from " +
         std::to_string(fold.shift) + ", prescale " + std::to_string(fold.reduction.prescale) +
         ", postscale " + std::to_string(fold.reduction.postscale) + ", divisor " +
         std::to_string(fold.reduction.divisor);
}

constexpr std::array kFoldOps = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                 ReduceOp::kProduct};

// visitor(reduction) for every op and scaling that has a meaning for `dtype`.
template <typename Visitor>
void VisitReductions(DataType dtype, Visitor visitor) {
  // Prescale, postscale, divisor; exact in float32, only in float64, and a power of two.
  struct Scales {
    double prescale;
    double postscale;
    int64_t divisor;
  };
  constexpr std::array kScales = {Scales{1, 1, 1},   Scales{1, 1, 3},      Scales{1, 1, 4},
                                  Scales{0.7, 1, 1}, Scales{-0.5, 0.3, 7}, Scales{1, 1e200, 2}};
  for (const ReduceOp op : kFoldOps) {
    if (!HasMeaning(op, dtype)) continue;
    for (const auto& [prescale, postscale, divisor] : kScales) {
      const Reduction reduction{dtype, op, prescale, postscale, divisor};
      if (reduction.Validate().ok()) visitor(reduction);
    }
  }
}

class SimdPaths : public ::testing::TestWithParam<SimdPath> {
 protected:
  void SetUp() override {
    if (!CpuHas(GetParam())) GTEST_SKIP() << "this CPU has no " << SimdPathName(GetParam());
  }
  const Kernels& kernels() { return KernelsOf(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(All, SimdPaths, ::testing::ValuesIn(kAllSimdPaths),
                         [](const auto& instance) {
                           return std::string(SimdPathName(instance.param));
                         });

TEST_P(SimdPaths, FoldsLikeThePortableOneBitForBit) {
  for (const DataType dtype : ::mydist::testing::kAllDataTypes) {
    VisitReductions(dtype, [&](const Reduction& reduction) {
      for (const int size : {1, 2, 3, 4, 5, 8}) {
        std::vector<Elements> inputs;
        for (int rank = 0; rank < size; ++rank) {
          inputs.push_back(AnyBits(dtype, 700, static_cast<uint64_t>(rank)));
        }
        for (const int64_t count : {1, 2, 3, 7, 16, 31, 33, 64, 127, 129, 511, 613}) {
          const FoldCase fold{reduction, size, count, count % 4};
          const Elements expected = Folded(kPortableKernels, inputs, fold);
          const Elements got = Folded(kernels(), inputs, fold);
          EXPECT_TRUE(got.bytes == expected.bytes) << TextOf(fold);
          EXPECT_TRUE(GuardsStand(got, fold)) << TextOf(fold);
        }
      }
    });
  }
}

// Into all sources, and into all and one more.
TEST_P(SimdPaths, WritesTheSameIntoEveryOutput) {
  constexpr int64_t kCount = 997;
  for (const DataType dtype : ::mydist::testing::kAllDataTypes) {
    for (const size_t size : {2, 3, 4, 5, 8}) {
      for (const size_t extra : {0, 1}) {
        const Reduction reduction{.dtype = dtype, .op = ReduceOp::kSum};
        auto tensors = ::mydist::testing::ContributionsOf(dtype, static_cast<int>(size), kCount);
        const Elements expected = Folded(kPortableKernels, tensors, {reduction, 0, kCount, 0});
        tensors.resize(size + extra, Elements(dtype, kCount));
        const std::vector<const void*> sources = PointersTo<const void*>(tensors);
        std::vector<void*> outputs = PointersTo<void*>(tensors);
        std::rotate(outputs.begin(), outputs.begin() + 1, outputs.end());
        FoldCall call = CallOf(reduction, kCount);
        call.sources = sources.data();
        call.source_count = size;
        call.outputs = outputs.data();
        call.output_count = outputs.size();
        kernels().fold(call);
        for (const Elements& tensor : tensors) {
          EXPECT_TRUE(std::equal(tensor.bytes.begin(), tensor.bytes.end(), expected.bytes.begin()))
              << DataTypeName(dtype) << " " << size << " + " << extra;
        }
      }
    }
  }
}

template <typename T>
T Folded2(const Kernels& kernels, DataType dtype, ReduceOp op, std::array<T, 2> values) {
  std::vector<Elements> inputs(2, Elements(dtype, 1));
  Put(inputs[0], 0, values[0]);
  Put(inputs[1], 0, values[1]);
  return Get<T>(Folded(kernels, inputs, {{.dtype = dtype, .op = op}, 2, 1, 0}), 0);
}

TEST_P(SimdPaths, ComputedNanIsAlwaysTheSame) {
  for (const uint32_t nan : {0x7f800001u, 0xffc12345u, 0x7fffffffu}) {
    for (const ReduceOp op : kFoldOps) {
      const auto fold = [&](uint32_t a, uint32_t b) {
        return Folded2<uint32_t>(kernels(), DataType::kFloat32, op, {a, b});
      };
      EXPECT_EQ(fold(nan, 0x3f800000u), 0x7fc00000u) << ReduceOpName(op);
      EXPECT_EQ(fold(0x3f800000u, nan), 0x7fc00000u) << ReduceOpName(op);
      EXPECT_EQ(fold(0xffc54321u, nan), 0x7fc00000u) << ReduceOpName(op);
    }
  }
  const auto sum = [&](DataType dtype, uint16_t a, uint16_t b) {
    return Folded2<uint16_t>(kernels(), dtype, ReduceOp::kSum, {a, b});
  };
  EXPECT_EQ(sum(DataType::kFloat16, 0x7c00, 0xfc00), 0x7e00);  // inf - inf
  EXPECT_EQ(sum(DataType::kBfloat16, 0x7f80, 0xff80), 0x7fc0);
  EXPECT_EQ(Folded2<uint64_t>(kernels(), DataType::kFloat64, ReduceOp::kSum,
                              {0x7ff0000000000000u, 0xfff0000000000000u}),
            0x7ff8000000000000u);
}

TEST_P(SimdPaths, ZerosKeepTheirSigns) {
  const auto fold = [&](ReduceOp op, float a, float b) {
    return std::signbit(Folded2<float>(kernels(), DataType::kFloat32, op, {a, b}));
  };
  EXPECT_TRUE(fold(ReduceOp::kMin, -0.0f, 0.0f));  // The first of equal ones.
  EXPECT_FALSE(fold(ReduceOp::kMin, 0.0f, -0.0f));
  EXPECT_TRUE(fold(ReduceOp::kMax, -0.0f, 0.0f));
  EXPECT_TRUE(fold(ReduceOp::kSum, -0.0f, -0.0f));
  EXPECT_FALSE(fold(ReduceOp::kSum, -0.0f, 0.0f));
  EXPECT_TRUE(fold(ReduceOp::kProduct, -0.0f, 3.0f));
}

// What Scale promises, number by number: in float64, rounded once.
TEST_P(SimdPaths, ScalesAsWrittenDown) {
  const std::vector<Elements> floats = {AnyBits(DataType::kFloat32, 4096, 1)};
  const std::vector<Elements> doubles = {AnyBits(DataType::kFloat64, 4096, 2)};
  for (const double multiplier : {1.0, -0.5, 0.1, 1e-30, 3.0e38}) {
    for (const int64_t divisor : {1, 2, 3, 64, 1000}) {
      Reduction reduction{DataType::kFloat32, ReduceOp::kSum, 1.0, multiplier, divisor};
      const Elements narrow = Folded(kernels(), floats, {reduction, 1, 4096, 0});
      reduction.dtype = DataType::kFloat64;
      const Elements wide = Folded(kernels(), doubles, {reduction, 1, 4096, 0});
      const double divided = static_cast<double>(divisor);
      int wrong = 0;
      for (int64_t i = 0; i < 4096; ++i) {
        const double x = static_cast<double>(Get<float>(floats[0], i));
        const auto narrow_expected = static_cast<float>(x * (multiplier / divided));
        const double wide_expected = Get<double>(doubles[0], i) * multiplier / divided;
        const float narrow_got = Get<float>(narrow, i);
        const double wide_got = Get<double>(wide, i);
        wrong += narrow_got != narrow_expected && !std::isnan(narrow_expected);
        wrong += wide_got != wide_expected && !std::isnan(wide_expected);
        wrong += std::isnan(narrow_got) != std::isnan(narrow_expected);
        wrong += std::isnan(wide_got) != std::isnan(wide_expected);
      }
      EXPECT_EQ(wrong, 0) << multiplier << " / " << divisor;
    }
  }
}

TEST(SimdPath, IsTheWidestUntilToldOtherwise) {
  ASSERT_TRUE(UseSimd("auto").ok());
  const SimdPath widest = CurrentPath();
  EXPECT_TRUE(CpuHas(widest));
  for (const SimdPath path : kAllSimdPaths) {
    if (CpuHas(path)) EXPECT_GE(widest, path);
    const Status status = UseSimd(SimdPathName(path));
    ASSERT_EQ(status.ok(), CpuHas(path)) << status.message();
    if (CpuHas(path)) EXPECT_EQ(CurrentPath(), path);
    EXPECT_EQ(&CurrentKernels(), &KernelsOf(CurrentPath()));
  }
  ASSERT_TRUE(UseSimd("auto").ok());
  EXPECT_EQ(CurrentPath(), widest);
}

TEST(SimdPath, SaysWhatThisCpuHas) {
  const SimdPath before = CurrentPath();
  const Status status = UseSimd("neon");
  ExpectError(status, StatusCode::kInvalidArgument, {"this CPU does not support MYDIST_SIMD=neon"});
  for (const SimdPath path : kAllSimdPaths) {
    const bool named = status.message().find(SimdPathName(path)) != std::string::npos;
    EXPECT_EQ(named, CpuHas(path)) << status.message();
  }
  EXPECT_EQ(CurrentPath(), before);
}

}  // namespace
}  // namespace mydist::simd
