// Pieces of memory copied, scaled and cast: against the scalar functions of element.h and float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/conversion.h"
#include "kernels/element.h"

namespace mydist {
namespace {

constexpr uint8_t kPoison = 0xa5;
constexpr int64_t kGuardBytes = 64;

// Floats of all magnitudes, some of them special.
float AnyFloat(std::mt19937_64& random) {
  switch (random() % 8) {
    case 0: {  // What remains of the bits of a NaN is not promised.
      const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
      return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
    }
    case 1:
      return static_cast<float>(static_cast<int64_t>(random() % 200001) - 100000);
    default:
      return std::ldexp(static_cast<float>(random() % 4096), static_cast<int>(random() % 40) - 30);
  }
}

float Widened(DataType dtype, const uint8_t* memory) {
  if (dtype == DataType::kFloat32) {
    float value;
    std::memcpy(&value, memory, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, memory, sizeof bits);
  return dtype == DataType::kFloat16 ? HalfToFloat(bits) : Bfloat16ToFloat(bits);
}

std::vector<uint8_t> Narrowed(DataType dtype, float value) {
  std::vector<uint8_t> bytes(static_cast<size_t>(SizeOf(dtype)));
  if (dtype == DataType::kFloat32) {
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  const uint16_t bits = dtype == DataType::kFloat16 ? FloatToHalf(value) : FloatToBfloat16(value);
  std::memcpy(bytes.data(), &bits, sizeof bits);
  return bytes;
}

// One piece of memory with guards, at an address that only its type's alignment rounds.
struct Piece {
  Piece(int64_t count, DataType dtype, std::mt19937_64& random)
      : memory(static_cast<size_t>(count * SizeOf(dtype) + 2 * kGuardBytes + 64), kPoison),
        offset(kGuardBytes + static_cast<int64_t>(random() % 16) * SizeOf(dtype)) {}

  uint8_t* data() { return memory.data() + offset; }

  std::vector<uint8_t> memory;
  int64_t offset;
};

struct Pair {
  DataType from;
  DataType to;
};

// Of one element.
std::vector<uint8_t> Converted(const uint8_t* element, const Conversion& conversion) {
  if (conversion.IsCopy()) return {element, element + SizeOf(conversion.from)};
  const double scaled = static_cast<double>(Widened(conversion.from, element)) *
                        conversion.factor.multiplier /
                        static_cast<double>(conversion.factor.divisor);
  return Narrowed(conversion.to, static_cast<float>(scaled));
}

void CheckConversion(const Conversion& conversion, std::mt19937_64& random) {
  std::vector<Piece> sources;
  std::vector<Piece> targets;
  std::vector<std::vector<uint8_t>> expected;
  ConvertSegments segments;
  for (const int64_t count : {0, 1, 3, 16, 17, 2047, 2048, 2049, 5000}) {
    Piece& source = sources.emplace_back(count, conversion.from, random);
    Piece& target = targets.emplace_back(count, conversion.to, random);
    std::vector<uint8_t>& memory = expected.emplace_back(target.memory);
    for (int64_t i = 0; i < count; ++i) {
      const std::vector<uint8_t> bytes = Narrowed(conversion.from, AnyFloat(random));
      uint8_t* const element = source.data() + i * SizeOf(conversion.from);
      std::copy(bytes.begin(), bytes.end(), element);
      const std::vector<uint8_t> result = Converted(element, conversion);
      std::copy(result.begin(), result.end(),
                memory.begin() + target.offset + i * SizeOf(conversion.to));
    }
    segments.push_back({source.data(), target.data(), count});
  }
  ConvertElements(segments, conversion);
  for (size_t s = 0; s < segments.size(); ++s) {
    EXPECT_EQ(targets[s].memory, expected[s]) << segments[s].element_count << " elements";
  }
}

class FloatConversion : public ::testing::TestWithParam<Pair> {};

TEST_P(FloatConversion, RoundsOnceAndTouchesNothingElse) {
  const auto [from, to] = GetParam();
  std::mt19937_64 random(static_cast<uint64_t>(from) * 100 + static_cast<uint64_t>(to));
  for (const Factor factor : {Factor{}, Factor{.multiplier = 0.3, .divisor = 1},
                              Factor{.multiplier = 1.0, .divisor = 7}}) {
    CheckConversion({.from = from, .to = to, .factor = factor}, random);
  }
}

constexpr DataType kF32 = DataType::kFloat32;
constexpr DataType kF16 = DataType::kFloat16;
constexpr DataType kBf16 = DataType::kBfloat16;
INSTANTIATE_TEST_SUITE_P(Pairs, FloatConversion,
                         ::testing::Values(Pair{kF32, kF16}, Pair{kF32, kBf16}, Pair{kF16, kF32},
                                           Pair{kBf16, kF32}, Pair{kF32, kF32}, Pair{kF16, kF16},
                                           Pair{kBf16, kBf16}));

TEST(Conversion, ScalesInPlace) {
  std::vector<int32_t> integers = {7, -7, 2147483647, -2147483647 - 1, 0};
  std::vector<uint16_t> halves = {FloatToHalf(1.5F), FloatToHalf(-0.25F), FloatToHalf(65504.0F)};
  ConvertElements({{{integers.data(), integers.data(), 5}}},
                  {.from = DataType::kInt32,
                   .to = DataType::kInt32,
                   .factor = {.multiplier = 3.0, .divisor = 2}});
  EXPECT_EQ(integers, (std::vector<int32_t>{10, -10, 2147483647, -2147483647 - 1, 0}));
  ConvertElements({{{halves.data(), halves.data(), 3}}},
                  {.from = kF16, .to = kF16, .factor = {.multiplier = 2.0, .divisor = 1}});
  EXPECT_EQ(halves, (std::vector<uint16_t>{FloatToHalf(3.0F), FloatToHalf(-0.5F), 0x7c00}));
}

TEST(Conversion, CopiesEveryType) {
  for (int number = 0; number < kDataTypeCount; ++number) {
    const auto dtype = static_cast<DataType>(number);
    std::mt19937_64 random(static_cast<uint64_t>(number));
    Piece source(37, dtype, random);
    Piece target(37, dtype, random);
    std::vector<uint8_t> expected = target.memory;
    for (int64_t i = 0; i < 37 * SizeOf(dtype); ++i) {
      const auto byte = static_cast<uint8_t>(random());
      source.data()[i] = byte;
      expected[static_cast<size_t>(target.offset + i)] = byte;
    }
    ConvertElements({{{source.data(), target.data(), 37}}}, {.from = dtype, .to = dtype});
    EXPECT_EQ(target.memory, expected) << DataTypeName(dtype);
  }
}

}  // namespace
}  // namespace mydist
