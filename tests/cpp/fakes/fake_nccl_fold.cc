#include "fakes/fake_nccl_fold.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/element.h"

namespace mydist::testing {
namespace {

using nccl::ElementType;
using nccl::ReductionKind;

struct Float16 {
  uint16_t bits;
  explicit operator double() const { return HalfToFloat(bits); }
  static Float16 Of(double value) { return {FloatToHalf(static_cast<float>(value))}; }
};

struct Brain16 {
  uint16_t bits;
  explicit operator double() const { return Bfloat16ToFloat(bits); }
  static Brain16 Of(double value) { return {FloatToBfloat16(static_cast<float>(value))}; }
};

template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T::Of(value);
  }
}

template <typename Visitor>
void Visit(ElementType type, Visitor&& visitor) {
  switch (type) {
    case ElementType::kInt8:
      return visitor(int8_t{});
    case ElementType::kUint8:
      return visitor(uint8_t{});
    case ElementType::kInt32:
      return visitor(int32_t{});
    case ElementType::kUint32:
      return visitor(uint32_t{});
    case ElementType::kInt64:
      return visitor(int64_t{});
    case ElementType::kUint64:
      return visitor(uint64_t{});
    case ElementType::kFloat16:
      return visitor(Float16{});
    case ElementType::kFloat32:
      return visitor(float{});
    case ElementType::kFloat64:
      return visitor(double{});
    case ElementType::kBfloat16:
      return visitor(Brain16{});
  }
  ADD_FAILURE() << "no element type of NCCL: " << static_cast<int>(type);
}

// Two numbers of up to float64 give the exact result or that rounded once more.
template <typename T>
T CombineFloats(ReductionKind kind, T a, T b) {
  const auto x = static_cast<double>(a);
  const auto y = static_cast<double>(b);
  if (kind == ReductionKind::kMin) return y < x ? b : a;
  if (kind == ReductionKind::kMax) return y > x ? b : a;
  return FromDouble<T>(kind == ReductionKind::kProd ? x * y : x + y);
}

template <typename T>
T CombineIntegers(ReductionKind kind, T a, T b) {
  if (kind == ReductionKind::kMin) return b < a ? b : a;
  if (kind == ReductionKind::kMax) return b > a ? b : a;
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  return static_cast<T>(kind == ReductionKind::kProd ? x * y : x + y);
}

template <typename T>
T Combine(ReductionKind kind, T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return CombineIntegers(kind, a, b);
  } else {
    return CombineFloats(kind, a, b);
  }
}

template <typename T>
T At(const void* source, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(source) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void FoldAs(const std::vector<const void*>& sources, void* output, size_t count,
            const FakeReduction& reduction) {
  std::optional<double> scalar = reduction.scalar;
  if (reduction.kind == ReductionKind::kAvg) {
    EXPECT_FALSE(std::is_integral_v<T>) << "an average of integers is not what mydist promises";
    scalar = static_cast<double>(FromDouble<T>(1.0 / static_cast<double>(sources.size())));
  }
  for (size_t i = 0; i < count; ++i) {
    const auto value = [&](const void* source) {
      const T element = At<T>(source, i);
      return scalar ? FromDouble<T>(static_cast<double>(element) * *scalar) : element;
    };
    T folded = value(sources[0]);
    for (size_t rank = 1; rank < sources.size(); ++rank) {
      folded = Combine(reduction.kind, folded, value(sources[rank]));
    }
    std::memcpy(static_cast<uint8_t*>(output) + i * sizeof(T), &folded, sizeof(T));
  }
}

}  // namespace

size_t SizeOf(ElementType type) {
  size_t bytes = 1;
  Visit(type, [&](auto element) { bytes = sizeof(element); });
  return bytes;
}

double NumberAt(const void* scalar, ElementType type) {
  double number = 0;
  Visit(type,
        [&](auto element) { number = static_cast<double>(At<decltype(element)>(scalar, 0)); });
  return number;
}

void Fold(const std::vector<const void*>& sources, void* output, size_t count,
          const FakeReduction& reduction) {
  Visit(reduction.type,
        [&](auto element) { FoldAs<decltype(element)>(sources, output, count, reduction); });
}

}  // namespace mydist::testing
