// FoldUnit: 16 bytes of a tensor, as threads of the kernels that fold read, fold and write them.
// Run by the GPU's threads, and by tests on the host.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/status.h"
#include "gpu/kernels/convert_thread.h"
#include "gpu/kernels/element_fold.h"

namespace mydist::cuda {

inline constexpr int kFoldUnitBytes = 16;

// What is folded, and how.
struct FoldSteps {
  ReduceOp op = ReduceOp::kSum;
  int32_t size = 1;  // Ranks.
  ElementScaling before{};
  ElementScaling after{};
};

inline FoldSteps FoldStepsOf(const Reduction& reduction, int size) {
  return {.op = reduction.op,
          .size = size,
          .before = ScalingOf({.multiplier = reduction.prescale}),
          .after = ScalingOf({.multiplier = reduction.postscale, .divisor = reduction.divisor})};
}

inline bool IsUnitAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kFoldUnitBytes == 0;
}

template <typename T>
struct FoldUnit {
  static constexpr int kElements = kFoldUnitBytes / static_cast<int>(sizeof(T));
  using Bytes = Words<kFoldUnitBytes>;
  struct Elements {
    T element[kElements];
  };

  static constexpr MYDIST_HOST_DEVICE int64_t Count(int64_t elements) {
    return (elements + kElements - 1) / kElements;
  }

  // Of a tensor of `count` elements, whose last unit may be cut short: it is filled up with zeros.
  static MYDIST_ALWAYS_INLINE Bytes Read(const uint8_t* tensor, int64_t count, bool is_aligned,
                                         int64_t unit) {
    const uint8_t* source = tensor + unit * kFoldUnitBytes;
    const int64_t left = count - unit * kElements;
    if (is_aligned && left >= kElements) return Load<Bytes>(source);
    T elements[kElements] = {};
    MYDIST_UNROLL for (int j = 0; j < kElements; ++j) {
      if (j < left) elements[j] = Load<T>(source + j * static_cast<int64_t>(sizeof(T)));
    }
    Bytes bytes;
    __builtin_memcpy(&bytes, elements, sizeof(bytes));
    return bytes;
  }

  static MYDIST_ALWAYS_INLINE void Write(uint8_t* tensor, int64_t count, bool is_aligned,
                                         int64_t unit, const Bytes& bytes) {
    uint8_t* target = tensor + unit * kFoldUnitBytes;
    const int64_t left = count - unit * kElements;
    if (is_aligned && left >= kElements) return Store(target, bytes);
    T elements[kElements];
    __builtin_memcpy(elements, &bytes, sizeof(bytes));
    MYDIST_UNROLL for (int j = 0; j < kElements; ++j) {
      if (j < left) Store(target + j * static_cast<int64_t>(sizeof(T)), elements[j]);
    }
  }

  // Of what `load(rank)` gives for each rank.
  template <typename LoadRank>
  static MYDIST_ALWAYS_INLINE Bytes Fold(const FoldSteps& steps, const LoadRank& load) {
    switch (steps.op) {
      case ReduceOp::kMin:
        return FoldBy<ReduceOp::kMin>(steps, load);
      case ReduceOp::kMax:
        return FoldBy<ReduceOp::kMax>(steps, load);
      case ReduceOp::kProduct:
        return FoldBy<ReduceOp::kProduct>(steps, load);
      default:
        return FoldBy<ReduceOp::kSum>(steps, load);
    }
  }

 private:
  // Loads that come before the first use of any: what they wait for is memory, or another GPU.
  static constexpr int kLoadsAtOnce = 8;

  template <ReduceOp kOp, typename LoadRank>
  static MYDIST_ALWAYS_INLINE Bytes FoldBy(const FoldSteps& steps, const LoadRank& load) {
    ElementFold<kOp, T, kElements> fold;
    if constexpr (std::is_integral_v<T>) {  // Rare, and big.
      for (int rank = 0; rank < steps.size; ++rank) {
        fold.Add(rank, __builtin_bit_cast(Elements, load(rank)).element, steps.before);
      }
    } else {
      for (int first = 0; first < steps.size; first += kLoadsAtOnce) {
        Elements loaded[kLoadsAtOnce];
        MYDIST_UNROLL for (int j = 0; j < kLoadsAtOnce; ++j) {
          if (first + j < steps.size) loaded[j] = __builtin_bit_cast(Elements, load(first + j));
        }
        MYDIST_UNROLL for (int j = 0; j < kLoadsAtOnce; ++j) {
          if (first + j < steps.size) fold.Add(first + j, loaded[j].element, steps.before);
        }
      }
    }
    Elements folded;
    fold.Finish(steps.after, folded.element);
    return __builtin_bit_cast(Bytes, folded);
  }
};

// visitor(T{}, parts) with the element type of the kernel and how many of them an element has.
template <typename Visitor>
auto VisitFoldElement(DataType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DataType::kUint8:
      return visitor(uint8_t{}, 1);
    case DataType::kInt8:
      return visitor(int8_t{}, 1);
    case DataType::kInt16:
      return visitor(int16_t{}, 1);
    case DataType::kInt32:
      return visitor(int32_t{}, 1);
    case DataType::kInt64:
      return visitor(int64_t{}, 1);
    case DataType::kFloat16:
      return visitor(Half{}, 1);
    case DataType::kBfloat16:
      return visitor(Bfloat16{}, 1);
    case DataType::kFloat32:
      return visitor(float{}, 1);
    case DataType::kFloat64:
      return visitor(double{}, 1);
    case DataType::kBool:
      return visitor(Bool{}, 1);
    case DataType::kComplex64:
      return visitor(float{}, 2);
    case DataType::kComplex128:
      return visitor(double{}, 2);
    case DataType::kFloat8E4m3:
    case DataType::kFloat8E5m2:
      break;
  }
  CheckFailed(__FILE__, __LINE__, "the type can be reduced");
}

// The same for every type; the first error ends it.
template <typename Visitor>
Status ForEachFoldElement(Visitor&& visitor) {
  for (int number = 0; number < kDataTypeCount; ++number) {
    const auto dtype = static_cast<DataType>(number);
    if (!IsFloat8(dtype)) MYDIST_RETURN_IF_ERROR(VisitFoldElement(dtype, visitor));
  }
  return Status::Ok();
}

}  // namespace mydist::cuda
