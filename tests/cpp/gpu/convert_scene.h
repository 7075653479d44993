// ConvertScene: made-up segments in two pieces of memory, one with numbers and one that is
// poisoned, and what a Convert must leave there: bit by bit after ScaleElements and element.h, and
// in numbers after float64. Where the memory lies is the test's business: on the host or on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "conformance/reduction_reference.h"
#include "kernels/conversion.h"
#include "kernels/element.h"
#include "memory/device/device.h"

namespace mydist::testing {

// How to lay out a scene. Offsets are multiples of an element; the memory is aligned to 256.
struct SceneLayout {
  std::vector<int64_t> counts;
  bool is_in_place = false;
  // Every source and target at an offset that is a multiple of this; 0: at any.
  int64_t alignment_bytes = 0;
};

class ConvertScene {
 public:
  ConvertScene(const Conversion& conversion, const SceneLayout& layout, uint64_t seed)
      : conversion_(conversion), is_in_place_(layout.is_in_place), random_(seed) {
    for (const int64_t count : layout.counts) {
      const Place place = {.source = Skip(source_bytes_, conversion.from, layout),
                           .target = Skip(target_bytes_, conversion.to, layout),
                           .count = count};
      source_bytes_ = place.source + count * SizeOf(conversion.from);
      target_bytes_ = place.target + count * SizeOf(conversion.to);
      places_.push_back(place);
    }
    source_bytes_ += kGuardBytes;
    target_bytes_ += kGuardBytes;
    FillSource();
  }

  // What lies in memory before the Convert; in place there is no other target.
  const std::vector<uint8_t>& source() const { return source_; }
  std::vector<uint8_t> PoisonedTarget() const {
    if (is_in_place_) return source_;
    return std::vector<uint8_t>(static_cast<size_t>(target_bytes_), kPoison);
  }

  std::vector<ConvertSegment> SegmentsIn(const void* source, void* target) const {
    std::vector<ConvertSegment> segments;
    for (const Place& place : places_) {
      segments.push_back({.source = static_cast<const uint8_t*>(source) + place.source,
                          .target = static_cast<uint8_t*>(target) + TargetOf(place),
                          .element_count = place.count});
    }
    return segments;
  }

  // `result` is the target's memory after the Convert.
  void Check(const std::vector<uint8_t>& result) const {
    std::vector<uint8_t> expected = PoisonedTarget();
    ASSERT_EQ(result.size(), expected.size());
    for (const Place& place : places_) {
      if (place.count > 0) Write(place, expected.data() + TargetOf(place));
    }
    for (size_t i = 0; i < result.size(); ++i) {
      ASSERT_EQ(int{result[i]}, int{expected[i]}) << "byte " << i << " " << Describe(i);
    }
    for (const Place& place : places_) CheckNumbers(place, result);
  }

 private:
  static constexpr uint8_t kPoison = 0xa5;
  static constexpr int64_t kGuardBytes = 64;

  struct Place {  // Offsets in bytes.
    int64_t source;
    int64_t target;
    int64_t count;
  };

  int64_t TargetOf(const Place& place) const { return is_in_place_ ? place.source : place.target; }

  int64_t Skip(int64_t used, DataType dtype, const SceneLayout& layout) {
    // Bytes are copied at any address: SizeOf is the most that a type may ask for.
    const int64_t step = layout.alignment_bytes > 0 ? layout.alignment_bytes : SizeOf(dtype);
    const int64_t gap = layout.alignment_bytes > 0 ? 0 : Draw(40);
    return (used + kGuardBytes + step - 1) / step * step + gap * step;
  }

  int64_t Draw(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(end)); }

  // Any bits; of each eight numbers one is a small one, one NaN or infinite.
  void FillSource() {
    source_.resize(static_cast<size_t>(source_bytes_));
    for (uint8_t& byte : source_) byte = static_cast<uint8_t>(random_());
    const DataType dtype = conversion_.from;
    if (!IsFloatingPoint(dtype) && !IsComplex(dtype)) return;
    const int64_t step = IsComplex(dtype) ? SizeOf(dtype) / 2 : SizeOf(dtype);
    const int exponent_bits = dtype == DataType::kFloat16 ? 5 : step == 8 ? 11 : 8;
    for (const Place& place : places_) {
      for (int64_t i = 0; i < place.count * (SizeOf(dtype) / step); ++i) {
        const int64_t kind = Draw(8);
        if (kind > 1) continue;
        uint64_t bits = 0;
        uint8_t* number = source_.data() + place.source + i * step;
        std::memcpy(&bits, number, static_cast<size_t>(step));
        const uint64_t exponent = ((uint64_t{1} << exponent_bits) - 1)
                                  << (step * 8 - 1 - exponent_bits);
        bits = kind == 0 ? bits & ~exponent : bits | exponent;
        if (kind == 1 && Draw(2) == 0) bits &= exponent | exponent << 1;
        std::memcpy(number, &bits, static_cast<size_t>(step));
      }
    }
  }

  // The place's numbers as the host converts them.
  void Write(const Place& place, uint8_t* target) const {
    const uint8_t* source = source_.data() + place.source;
    const DataType from = conversion_.from;
    const DataType to = conversion_.to;
    if (from == to && conversion_.factor.IsOne()) {
      std::memcpy(target, source, static_cast<size_t>(place.count * SizeOf(to)));
      return;
    }
    const bool is_float = SizeOf(from) <= 4 && IsFloatingPoint(from);
    if (!is_float) return WriteScaled(place, target);
    std::vector<float> numbers(static_cast<size_t>(place.count));
    std::vector<uint16_t> narrow(numbers.size());
    std::memcpy(SizeOf(from) == 4 ? static_cast<void*>(numbers.data()) : narrow.data(), source,
                static_cast<size_t>(place.count * SizeOf(from)));
    if (from == DataType::kFloat16) WidenHalf(narrow.data(), numbers.data(), place.count);
    if (from == DataType::kBfloat16) WidenBfloat16(narrow.data(), numbers.data(), place.count);
    if (!conversion_.factor.IsOne()) {
      ScaleElements(numbers.data(), numbers.data(), place.count, conversion_.factor);
    }
    if (to == DataType::kFloat16) NarrowHalf(numbers.data(), narrow.data(), place.count);
    if (to == DataType::kBfloat16) NarrowBfloat16(numbers.data(), narrow.data(), place.count);
    std::memcpy(target, SizeOf(to) == 4 ? static_cast<void*>(numbers.data()) : narrow.data(),
                static_cast<size_t>(place.count * SizeOf(to)));
  }

  void WriteScaled(const Place& place, uint8_t* target) const {
    const uint8_t* source = source_.data() + place.source;
    VisitElement(conversion_.from, [&]<typename T>(T) {
      if constexpr (requires(T * t) { ScaleElements(t, t, 0, Factor{}); }) {
        std::vector<T> numbers(static_cast<size_t>(place.count));
        std::memcpy(static_cast<void*>(numbers.data()), source, numbers.size() * sizeof(T));
        ScaleElements(numbers.data(), numbers.data(), place.count, conversion_.factor);
        std::memcpy(target, static_cast<void*>(numbers.data()), numbers.size() * sizeof(T));
      }
    });
  }

  // Floating point: no further from the product in float64 than rounding takes it.
  void CheckNumbers(const Place& place, const std::vector<uint8_t>& result) const {
    if (!IsFloatingPoint(conversion_.to)) return;
    Elements before(conversion_.from, place.count);
    Elements after(conversion_.to, place.count);
    if (place.count == 0) return;
    std::memcpy(before.data(), source_.data() + place.source, before.bytes.size());
    std::memcpy(after.data(), result.data() + TargetOf(place), after.bytes.size());
    const Rounding rounding = RoundingOf(conversion_.to);
    for (int64_t i = 0; i < place.count; ++i) {
      const double exact = NumberAt(before, i).real() * conversion_.factor.multiplier /
                           static_cast<double>(conversion_.factor.divisor);
      const double got = NumberAt(after, i).real();
      if (std::isnan(exact)) {
        ASSERT_TRUE(std::isnan(got)) << "number " << i;
      } else if (std::isinf(got)) {
        ASSERT_GE(std::copysign(exact, exact * got), rounding.overflow) << "number " << i;
      } else {
        const double allowed = std::abs(exact) * rounding.relative + rounding.absolute;
        ASSERT_LE(std::abs(got - exact), allowed) << "number " << i << ": got " << got;
      }
    }
  }

  struct Rounding {
    double relative;
    double absolute;
    double overflow;  // Nothing smaller becomes infinite.
  };
  // Half a unit of the last place, and a little for having rounded before.
  static Rounding RoundingOf(DataType dtype) {
    switch (dtype) {
      case DataType::kFloat16:
        return {0x1.01p-11, 0x1.01p-25, 65519.99};
      case DataType::kBfloat16:
        return {0x1.01p-8, 0x1.01p-134, 0x1.fefffep127};
      case DataType::kFloat32:
        return {0x1.01p-24, 0x1.01p-150, 0x1.fffffefffp127};
      default:
        return {0x1p-51, 0x1p-1074, HUGE_VAL};
    }
  }

  std::string Describe(size_t offset) const {
    const auto at = static_cast<int64_t>(offset);
    for (size_t i = 0; i < places_.size(); ++i) {
      const int64_t begin = TargetOf(places_[i]);
      if (at < begin || at >= begin + places_[i].count * SizeOf(conversion_.to)) continue;
      return "of segment " + std::to_string(i) + ": element " +
             std::to_string((at - begin) / SizeOf(conversion_.to)) + " of " +
             std::to_string(places_[i].count);
    }
    return "which belongs to no segment";
  }

  const Conversion conversion_;
  const bool is_in_place_;
  std::mt19937_64 random_;
  std::vector<Place> places_;
  int64_t source_bytes_ = 0;
  int64_t target_bytes_ = 0;
  std::vector<uint8_t> source_;
};

// All conversions that exist, with factors of every kind of arithmetic.
inline std::vector<Conversion> EveryConversion() {
  const Factor factors[] = {{},
                            {.multiplier = 0.25},
                            {.multiplier = 1.0, .divisor = 8},
                            {.multiplier = 1.0, .divisor = 3},
                            {.multiplier = -2.7, .divisor = 7},
                            {.multiplier = 1e30, .divisor = 1}};
  std::vector<Conversion> conversions;
  for (const Factor& factor : factors) {
    for (const DataType dtype : kAllDataTypes) {
      if (dtype == DataType::kBool && !factor.IsOne()) continue;
      conversions.push_back({dtype, dtype, factor});
    }
    for (const DataType narrow : {DataType::kFloat16, DataType::kBfloat16}) {
      conversions.push_back({DataType::kFloat32, narrow, factor});
      conversions.push_back({narrow, DataType::kFloat32, factor});
    }
  }
  return conversions;
}

inline std::string NameOf(const Conversion& conversion) {
  return std::string(DataTypeName(conversion.from)) + " to " +
         std::string(DataTypeName(conversion.to)) + " × " +
         std::to_string(conversion.factor.multiplier) + " ÷ " +
         std::to_string(conversion.factor.divisor);
}

}  // namespace mydist::testing
