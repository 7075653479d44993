// Element: the C++ type behind each DataType inside the kernels, and the loops' common ground.
// Private to ops/. 16-bit floats and complex numbers are plain structs: all arithmetic on them is
// spelled out in the kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"

// The loop's iterations are independent although the compiler cannot see it: pointers are either
// exactly equal or do not overlap.
#if defined(__clang__)
// A loop that cannot be vectorised for this CPU is slower, not wrong.
#pragma clang diagnostic ignored "-Wpass-failed"
#define MYDIST_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define MYDIST_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace mydist {

struct Half {
  uint16_t bits;
};

struct Bfloat16 {
  uint16_t bits;
};

struct Bool {
  uint8_t value;  // 0 is false; results are 0 or 1.
};

template <typename T>
struct Complex {
  T real;
  T imaginary;
};

// Calls visitor(Element{}) with the element type of `dtype`, which is none of 8-bit floats.
template <typename Visitor>
void VisitElement(DataType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DataType::kUint8:
      return visitor(uint8_t{});
    case DataType::kInt8:
      return visitor(int8_t{});
    case DataType::kInt16:
      return visitor(int16_t{});
    case DataType::kInt32:
      return visitor(int32_t{});
    case DataType::kInt64:
      return visitor(int64_t{});
    case DataType::kFloat16:
      return visitor(Half{});
    case DataType::kBfloat16:
      return visitor(Bfloat16{});
    case DataType::kFloat32:
      return visitor(float{});
    case DataType::kFloat64:
      return visitor(double{});
    case DataType::kBool:
      return visitor(Bool{});
    case DataType::kComplex64:
      return visitor(Complex<float>{});
    case DataType::kComplex128:
      return visitor(Complex<double>{});
    case DataType::kFloat8E4m3:
    case DataType::kFloat8E5m2:
      break;  // Nothing is computed with them.
  }
  MYDIST_CHECK(false);
}

inline const uint8_t* AsBytes(const void* memory) { return static_cast<const uint8_t*>(memory); }
inline uint8_t* AsBytes(void* memory) { return static_cast<uint8_t*>(memory); }

// Null stays null: empty tensors have no memory to point into.
template <typename T>
T* Advance(T* memory, int64_t count) {
  return memory == nullptr ? nullptr : memory + count;
}

// memcpy that accepts null pointers when there is nothing to copy, and equal ones.
inline void CopyBytes(void* output, const void* source, int64_t bytes) {
  if (bytes > 0 && output != source) std::memcpy(output, source, static_cast<size_t>(bytes));
}

}  // namespace mydist
