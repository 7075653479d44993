// ElementFold: contributions of ranks become one result, a few elements in registers. Pure; run by
// the GPU's threads, and by tests on the host: the bits are those of ReduceInRankOrder.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/kernels/convert_element.h"
#include "kernels/element.h"
#include "world/collective_op.h"

namespace mydist::cuda {

// What elements are folded as: 16-bit floats as float32.
template <typename T>
struct FoldedAs {
  using Type = T;
};
template <>
struct FoldedAs<Half> {
  using Type = float;
};
template <>
struct FoldedAs<Bfloat16> {
  using Type = float;
};

template <typename T>
MYDIST_ALWAYS_INLINE typename FoldedAs<T>::Type WidenForFold(T value) {
  if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<uint8_t>(value.value != 0 ? 1 : 0)};
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    return WidenElement(value);
  } else {
    return value;
  }
}

template <typename T>
MYDIST_ALWAYS_INLINE void NarrowFolded(typename FoldedAs<T>::Type value, T& output) {
  if constexpr (std::is_same_v<typename FoldedAs<T>::Type, float>) {
    NarrowElement(Canonical(value), output);
  } else if constexpr (std::is_same_v<T, double>) {
    output = Canonical(value);
  } else {
    output = value;
  }
}

// Integers wrap around; Min and Max give NaN when either side is NaN, and the first of equal ones.
template <ReduceOp kOp, typename T>
MYDIST_ALWAYS_INLINE T Combine(T a, T b) {
  if constexpr (std::is_same_v<T, Bool>) {
    constexpr bool kOr = kOp == ReduceOp::kSum || kOp == ReduceOp::kMax;
    return {static_cast<uint8_t>(kOr ? a.value | b.value : a.value & b.value)};
  } else if constexpr (kOp == ReduceOp::kMin) {
    return b < a || b != b ? b : a;
  } else if constexpr (kOp == ReduceOp::kMax) {
    return b > a || b != b ? b : a;
  } else if constexpr (std::is_integral_v<T>) {
    const auto left = static_cast<uint64_t>(a);
    const auto right = static_cast<uint64_t>(b);
    return static_cast<T>(kOp == ReduceOp::kSum ? left + right : left * right);
  } else {
    return kOp == ReduceOp::kSum ? a + b : a * b;
  }
}

template <typename T, int kCount>
MYDIST_ALWAYS_INLINE void ScaleFolded(T (&values)[kCount], const ElementScaling& scaling) {
  if constexpr (!std::is_same_v<T, Bool>) {
    if (!scaling.is_one) ConvertElements(values, values, scaling);
  }
}

// The fold of so many elements of each rank, which are added in their order from rank 0 on.
template <ReduceOp kOp, typename T, int kCount>
struct ElementFold {
  using Wide = typename FoldedAs<T>::Type;
  Wide folded[kCount] = {};

  MYDIST_ALWAYS_INLINE void Add(int rank, const T (&source)[kCount], const ElementScaling& before) {
    Wide wide[kCount];
    MYDIST_UNROLL for (int j = 0; j < kCount; ++j) wide[j] = WidenForFold(source[j]);
    ScaleFolded(wide, before);
    MYDIST_UNROLL for (int j = 0; j < kCount; ++j) {
      folded[j] = rank == 0 ? wide[j] : Combine<kOp>(folded[j], wide[j]);
    }
  }
  MYDIST_ALWAYS_INLINE void Finish(const ElementScaling& after, T (&output)[kCount]) {
    ScaleFolded(folded, after);
    MYDIST_UNROLL for (int j = 0; j < kCount; ++j) NarrowFolded(folded[j], output[j]);
  }
};

}  // namespace mydist::cuda
