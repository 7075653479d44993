// ReductionReference: made-up contributions of ranks and what reducing them must give, computed
// independently of the kernels: integers exactly, floating point in float64 with an error bound
// that only holds when 16-bit types are rounded once. Needs nothing but GoogleTest and base types.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "conformance/deep.h"
#include "conformance/sanitizers.h"
#include "kernels/reduction.h"

namespace mydist::testing {

inline constexpr DataType kAllDataTypes[] = {
    DataType::kUint8,   DataType::kInt8,    DataType::kInt16,     DataType::kInt32,
    DataType::kInt64,   DataType::kFloat16, DataType::kBfloat16,  DataType::kFloat32,
    DataType::kFloat64, DataType::kBool,    DataType::kComplex64, DataType::kComplex128};

// All types; in an ordinary run under a sanitizer one of each kind, as threads do the same with
// all.
inline std::vector<DataType> TypesToTry() {
  const std::vector<DataType> all(std::begin(kAllDataTypes), std::end(kAllDataTypes));
  return InDeep(all, all, {DataType::kFloat32, DataType::kBfloat16, DataType::kBool});
}
inline constexpr ReduceOp kAllReduceOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                                             ReduceOp::kMax, ReduceOp::kProduct};

// What a collective is tried with on one type: every operation that `reduces`. Under a sanitizer
// every other type than float32 has one only, not the same for all: who reads and writes what does
// not depend on it, and the kernels' own tests combine all types and operations there, too.
inline std::vector<ReduceOp> ReduceOpsOf(DataType dtype,
                                         bool (*reduces)(ReduceOp, DataType) = HasMeaning) {
  constexpr size_t kCount = std::size(kAllReduceOps);
  const bool wants_all = !kIsSanitized || dtype == DataType::kFloat32;
  std::vector<ReduceOp> ops;
  for (size_t i = 0; i < kCount && (wants_all || ops.empty()); ++i) {
    const ReduceOp op = kAllReduceOps[(static_cast<size_t>(dtype) + i) % kCount];
    if (reduces(op, dtype)) ops.push_back(op);
  }
  return ops;
}

// Raw elements of one dtype.
struct Elements {
  DataType dtype = DataType::kFloat32;
  std::vector<uint8_t> bytes;

  Elements(DataType type, int64_t count, uint8_t fill = 0)
      : dtype(type), bytes(static_cast<size_t>(count * SizeOf(type)), fill) {}
  int64_t count() const { return static_cast<int64_t>(bytes.size()) / SizeOf(dtype); }
  void* data() { return bytes.data(); }
  const void* data() const { return bytes.data(); }
};

inline uint64_t Scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

template <typename T>
void Put(Elements& elements, int64_t index, T value) {
  std::memcpy(elements.bytes.data() + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

template <typename T>
T Get(const Elements& elements, int64_t index) {
  T value;
  std::memcpy(&value, elements.bytes.data() + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Any bits for integers; for floating point any mantissa and sign with a magnitude in [0.5, 2), so
// that products of many ranks stay finite.
inline void PutRandom(Elements& elements, int64_t index, uint64_t bits) {
  const uint64_t low_exponent = bits >> 60 & 1;
  const auto float32 = static_cast<uint32_t>((bits & 0x807fffffu) | (126 + low_exponent) << 23);
  const uint64_t float64 = (bits & 0x800fffffffffffffu) | (1022 + low_exponent) << 52;
  switch (elements.dtype) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kFloat8E4m3:
    case DataType::kFloat8E5m2:
      return Put(elements, index, static_cast<uint8_t>(bits));
    case DataType::kInt16:
      return Put(elements, index, static_cast<uint16_t>(bits));
    case DataType::kInt32:
      return Put(elements, index, static_cast<uint32_t>(bits));
    case DataType::kInt64:
      return Put(elements, index, bits);
    case DataType::kFloat16:
      return Put(elements, index,
                 static_cast<uint16_t>((bits & 0x83ffu) | (14 + low_exponent) << 10));
    case DataType::kBfloat16:
      return Put(elements, index, static_cast<uint16_t>(float32 >> 16));
    case DataType::kFloat32:
      return Put(elements, index, float32);
    case DataType::kFloat64:
      return Put(elements, index, float64);
    case DataType::kBool:
      return Put(elements, index, static_cast<uint8_t>(bits >> 17 & 1));
    case DataType::kComplex64:
      Put(elements, 2 * index, float32);
      return Put(elements, 2 * index + 1, float32 ^ 0x00155555u);
    case DataType::kComplex128:
      Put(elements, 2 * index, float64);
      return Put(elements, 2 * index + 1, float64 ^ 0x0005555555555555u);
  }
}

// The contribution of `rank`; the same wherever it is computed. `salt` tells tensors apart.
inline Elements ContributionOf(DataType dtype, int rank, int64_t count, uint64_t salt = 0) {
  Elements elements(dtype, count);
  for (int64_t i = 0; i < count; ++i) {
    PutRandom(elements, i,
              Scramble(static_cast<uint64_t>(i) ^ static_cast<uint64_t>(rank) << 40 ^ salt << 52));
  }
  return elements;
}

inline int64_t IntegerAt(const Elements& elements, int64_t index) {
  switch (elements.dtype) {
    case DataType::kInt8:
      return Get<int8_t>(elements, index);
    case DataType::kInt16:
      return Get<int16_t>(elements, index);
    case DataType::kInt32:
      return Get<int32_t>(elements, index);
    case DataType::kInt64:
      return Get<int64_t>(elements, index);
    default:
      return Get<uint8_t>(elements, index);
  }
}

inline double HalfValue(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 0x1f) return mantissa != 0 ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(mantissa + 1024, exponent - 25);
}

inline std::complex<double> NumberAt(const Elements& elements, int64_t index) {
  switch (elements.dtype) {
    case DataType::kFloat16:
      return HalfValue(Get<uint16_t>(elements, index));
    case DataType::kBfloat16: {
      const uint32_t bits = uint32_t{Get<uint16_t>(elements, index)} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
    case DataType::kFloat32:
      return Get<float>(elements, index);
    case DataType::kFloat64:
      return Get<double>(elements, index);
    case DataType::kComplex64:
      return {Get<float>(elements, 2 * index), Get<float>(elements, 2 * index + 1)};
    case DataType::kComplex128:
      return {Get<double>(elements, 2 * index), Get<double>(elements, 2 * index + 1)};
    default:
      return static_cast<double>(IntegerAt(elements, index));
  }
}

// Relative error of one rounding to the type folded in, and to the type stored.
struct Precision {
  double fold;
  double store;
  double store_least = 0;  // Of what is stored below the normal numbers, absolute.
};

inline Precision PrecisionOf(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return {0x1p-24, 0x1p-11, 0x1p-25};
    case DataType::kBfloat16:
      return {0x1p-24, 0x1p-8};
    case DataType::kFloat64:
    case DataType::kComplex128:
      return {0x1p-52, 0};
    default:
      return {0x1p-23, 0};
  }
}

// Cuts to the bits of the type, as wrap-around arithmetic does.
inline int64_t Wrapped(DataType dtype, int64_t value) {
  Elements one(dtype, 1);
  std::memcpy(one.data(), &value, static_cast<size_t>(SizeOf(dtype)));  // Little endian.
  return IntegerAt(one, 0);
}

// float64 truncated toward zero, kept inside the type.
inline int64_t Scaled(DataType dtype, int64_t value, double multiplier, int64_t divisor) {
  if (multiplier == 1.0 && divisor == 1) return value;
  const double scaled =
      std::trunc(static_cast<double>(value) * multiplier / static_cast<double>(divisor));
  const int bits = static_cast<int>(8 * SizeOf(dtype));
  const bool is_signed = dtype != DataType::kUint8;
  const double limit = std::ldexp(1.0, is_signed ? bits - 1 : bits);
  const uint64_t highest = (is_signed ? uint64_t{1} << (bits - 1) : uint64_t{1} << bits) - 1;
  if (scaled >= limit) return static_cast<int64_t>(highest);
  if (scaled <= (is_signed ? -limit : 0.0))
    return is_signed ? -static_cast<int64_t>(highest) - 1 : 0;
  return static_cast<int64_t>(scaled);
}

inline int64_t CombineIntegers(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    default:
      return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
}

inline int64_t ExpectedInteger(const std::vector<Elements>& inputs, int64_t index,
                               const Reduction& reduction) {
  const DataType dtype = reduction.dtype;
  const auto value = [&](const Elements& input) {
    return Scaled(dtype, IntegerAt(input, index), reduction.prescale, 1);
  };
  int64_t folded = value(inputs[0]);
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    folded = Wrapped(dtype, CombineIntegers(reduction.op, folded, value(inputs[rank])));
  }
  const bool average = reduction.op == ReduceOp::kAverage;
  return Scaled(dtype, folded, reduction.postscale,
                average ? static_cast<int64_t>(inputs.size()) : 1);
}

inline bool ExpectedBool(const std::vector<Elements>& inputs, int64_t index, ReduceOp op) {
  const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
  const auto is_set = [&](const Elements& input) { return Get<uint8_t>(input, index) != 0; };
  return any ? std::any_of(inputs.begin(), inputs.end(), is_set)
             : std::all_of(inputs.begin(), inputs.end(), is_set);
}

// How often a floating-point result is rounded to its own type.
enum class Rounding {
  kOnce,
  kEveryStep,  // Each factor, product and sum, in any order.
};

struct ExpectedNumber {
  std::complex<double> value;
  double error;  // Largest |got - value| that is right.
};

inline ExpectedNumber ExpectedFloat(const std::vector<Elements>& inputs, int64_t index,
                                    const Reduction& reduction, Rounding rounding) {
  const bool multiplies = reduction.op == ReduceOp::kProduct;
  std::complex<double> folded = multiplies ? 1.0 : 0.0;
  double magnitude = multiplies ? 1.0 : 0.0;  // What rounding errors are relative to.
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    const std::complex<double> value = NumberAt(inputs[rank], index) * reduction.prescale;
    if (multiplies) {
      folded *= value;
      magnitude *= std::abs(value);
    } else if (reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kMax) {
      const bool less = value.real() < folded.real();
      if (rank == 0 || less == (reduction.op == ReduceOp::kMin)) folded = value;
      magnitude = std::abs(folded);
    } else {
      folded += value;
      magnitude += std::abs(value);
    }
  }
  const double size = static_cast<double>(inputs.size());
  const double scale = reduction.postscale / (reduction.op == ReduceOp::kAverage ? size : 1.0);
  const bool exact =
      (reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kMax || inputs.size() == 1) &&
      reduction.prescale == 1.0 && scale == 1.0;
  Precision precision = PrecisionOf(reduction.dtype);
  if (rounding == Rounding::kEveryStep) precision.fold = std::max(precision.fold, precision.store);
  const double fold_error =
      exact ? 0 : 2 * (size + 2) * precision.fold * magnitude * std::abs(scale);
  const double store_error =
      exact ? 0 : std::max(precision.store * std::abs(folded * scale), precision.store_least);
  return {folded * scale, fold_error + store_error};
}

// Checks element by element that `got` is the reduction of `inputs` (one per rank). `first` is the
// index in `inputs` of got's first element. Reports the first few wrong elements.
inline void ExpectReduced(const Elements& got, const std::vector<Elements>& inputs,
                          const Reduction& reduction, int64_t first = 0,
                          Rounding rounding = Rounding::kOnce) {
  const std::string what = std::string(ReduceOpName(reduction.op)) + " of " +
                           std::string(DataTypeName(reduction.dtype)) + " over " +
                           std::to_string(inputs.size()) + " ranks, " +
                           std::to_string(got.count()) + " elements";
  int wrong = 0;
  for (int64_t i = 0; i < got.count() && wrong < 3; ++i) {
    const int64_t at = first + i;
    bool right = false;
    if (reduction.dtype == DataType::kBool) {
      right = IntegerAt(got, i) == (ExpectedBool(inputs, at, reduction.op) ? 1 : 0);
    } else if (IsInteger(reduction.dtype)) {
      right = IntegerAt(got, i) == ExpectedInteger(inputs, at, reduction);
    } else {
      const ExpectedNumber expected = ExpectedFloat(inputs, at, reduction, rounding);
      right = std::abs(NumberAt(got, i) - expected.value) <= expected.error;
    }
    if (right) continue;
    ++wrong;
    ADD_FAILURE() << what << ": element " << i << " is " << NumberAt(got, i);
  }
}

// The elements [begin, begin + count).
inline Elements SliceOf(const Elements& elements, int64_t begin, int64_t count) {
  Elements slice(elements.dtype, count);
  const int64_t element_bytes = SizeOf(elements.dtype);
  const auto first = elements.bytes.begin() + begin * element_bytes;
  std::copy(first, first + count * element_bytes, slice.bytes.begin());
  return slice;
}

// The contributions of all ranks.
inline std::vector<Elements> ContributionsOf(DataType dtype, int size, int64_t count,
                                             uint64_t salt = 0) {
  std::vector<Elements> inputs;
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(ContributionOf(dtype, rank, count, salt));
  }
  return inputs;
}

}  // namespace mydist::testing
