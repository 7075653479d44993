// The kernels' one source; part of kernels_*.cc only, once for each path. A fold reads a tile of
// all sources before it writes the tile to all outputs: one pass over memory, nothing in between
// but registers, and an output may be one of the sources.
#pragma once

#include "kernels/simd/adamw_lanes.h"
#include "kernels/simd/combine_lanes.h"
#include "kernels/simd/simd_path.h"

namespace mydist::simd::MYDIST_SIMD_PATH {
namespace {

// Enough loads at once to keep memory busy, few enough to stay in registers.
constexpr int kTileVectors = 4;

struct FoldScaling {
  Scaling before;
  Scaling after;
};

template <ReduceOp kOp, typename T>
struct Fold {
  using L = Lanes<T>;
  using Wide = typename L::Wide;
  using Packed = typename L::Packed;
  static constexpr int kElementBytes = static_cast<int>(sizeof(T));
  static constexpr int kPackedBytes = static_cast<int>(sizeof(Packed));

  // packed[j] = the fold of read(source, j) over all sources.
  template <int kCount, typename Read>
  static MYDIST_ALWAYS_INLINE void FoldTile(const FoldCall& call, const FoldScaling& scaling,
                                            Read read, Packed* packed) {
    Wide folded[kCount];
    for (int j = 0; j < kCount; ++j) folded[j] = L::Widen(read(call.sources[0], j));
    if (!scaling.before.is_one) [[unlikely]] {
      for (int j = 0; j < kCount; ++j) folded[j] = Scale<T>()(folded[j], scaling.before);
    }
    for (size_t k = 1; k < call.source_count; ++k) {
      Wide next[kCount];
      for (int j = 0; j < kCount; ++j) next[j] = L::Widen(read(call.sources[k], j));
      if (!scaling.before.is_one) [[unlikely]] {
        for (int j = 0; j < kCount; ++j) next[j] = Scale<T>()(next[j], scaling.before);
      }
      for (int j = 0; j < kCount; ++j) folded[j] = Combine<kOp, T>()(folded[j], next[j]);
    }
    if (!scaling.after.is_one) [[unlikely]] {
      for (int j = 0; j < kCount; ++j) folded[j] = Scale<T>()(folded[j], scaling.after);
    }
    for (int j = 0; j < kCount; ++j) packed[j] = L::NarrowCanonical(Canonical(folded[j]));
  }

  template <int kCount>
  static MYDIST_ALWAYS_INLINE void FoldAt(const FoldCall& call, const FoldScaling& scaling,
                                          int64_t offset) {
    const auto read = [offset](const void* source, int j) __attribute__((always_inline)) {
      return LoadVector<Packed>(static_cast<const char*>(source) + offset + j * kPackedBytes);
    };
    Packed packed[kCount];
    FoldTile<kCount>(call, scaling, read, packed);
    for (size_t k = 0; k < call.output_count; ++k) {
      char* output = static_cast<char*>(call.outputs[k]) + offset;
      for (int j = 0; j < kCount; ++j) StoreVector(output + j * kPackedBytes, packed[j]);
    }
  }

  // Fewer bytes than a vector has.
  [[gnu::noinline]] static void FoldPart(const FoldCall& call, const FoldScaling& scaling,
                                         int64_t offset, int64_t bytes) {
    const auto read = [=](const void* source, int) __attribute__((always_inline)) {
      return LoadPart<Packed>(static_cast<const char*>(source) + offset, bytes);
    };
    Packed packed[1];
    FoldTile<1>(call, scaling, read, packed);
    for (size_t k = 0; k < call.output_count; ++k) {
      StorePart(static_cast<char*>(call.outputs[k]) + offset, packed[0], bytes);
    }
  }

  // Sums of few sources, as most are: pointers stay in registers, which leaves the CPU room to look
  // far ahead in memory. Returns where the whole tiles end.
  template <int kSources>
  static int64_t SumFew(const FoldCall& call, const Scaling& after, int64_t bytes) {
    const char* sources[kSources];
    char* outputs[kSources];
    const auto output_count = static_cast<int>(call.output_count);
    for (int k = 0; k < kSources; ++k) {
      sources[k] = static_cast<const char*>(call.sources[k]);
      outputs[k] = k < output_count ? static_cast<char*>(call.outputs[k]) : nullptr;
    }
    const bool is_scaled = !after.is_one;
    int64_t offset = 0;
    for (; offset + kTileVectors * kPackedBytes <= bytes; offset += kTileVectors * kPackedBytes) {
      Wide sum[kTileVectors];
      for (int j = 0; j < kTileVectors; ++j) {
        const int64_t at = offset + j * kPackedBytes;
        sum[j] = L::Widen(LoadVector<Packed>(sources[0] + at));
        for (int k = 1; k < kSources; ++k) {
          sum[j] = Combine<kOp, T>()(sum[j], L::Widen(LoadVector<Packed>(sources[k] + at)));
        }
      }
      if (is_scaled) [[unlikely]] {
        for (int j = 0; j < kTileVectors; ++j) sum[j] = Scale<T>()(sum[j], after);
      }
      Packed packed[kTileVectors];
      for (int j = 0; j < kTileVectors; ++j) packed[j] = L::NarrowCanonical(Canonical(sum[j]));
      for (int k = 0; k < kSources; ++k) {
        if (outputs[k] == nullptr) break;
        for (int j = 0; j < kTileVectors; ++j) {
          StoreVector(outputs[k] + offset + j * kPackedBytes, packed[j]);
        }
      }
    }
    return offset;
  }

  // How much of the fold SumFew has done; 0 when it is not for it.
  static int64_t TrySumFew(const FoldCall& call, const FoldScaling& scaling, int64_t bytes) {
    if constexpr (kOp == ReduceOp::kSum) {
      if (!scaling.before.is_one || call.output_count > call.source_count) return 0;
      if (call.source_count == 2) return SumFew<2>(call, scaling.after, bytes);
      if (call.source_count == 3) return SumFew<3>(call, scaling.after, bytes);
      if (call.source_count == 4) return SumFew<4>(call, scaling.after, bytes);
      if (call.source_count == 8) return SumFew<8>(call, scaling.after, bytes);
    }
    return 0;
  }

  static void Run(const FoldCall& call) {
    const FoldScaling scaling = {ScalingBy(call.prescale, 1),
                                 ScalingBy(call.postscale, call.divisor)};
    const int64_t bytes = call.count * kElementBytes;
    int64_t offset = TrySumFew(call, scaling, bytes);
    for (; offset + kTileVectors * kPackedBytes <= bytes; offset += kTileVectors * kPackedBytes) {
      FoldAt<kTileVectors>(call, scaling, offset);
    }
    for (; offset + kPackedBytes <= bytes; offset += kPackedBytes) {
      FoldAt<1>(call, scaling, offset);
    }
    if (offset < bytes) FoldPart(call, scaling, offset, bytes - offset);
  }
};

template <typename T>
void FoldByOp(const FoldCall& call) {
  switch (call.op) {
    case ReduceOp::kMin:
      return Fold<ReduceOp::kMin, T>::Run(call);
    case ReduceOp::kMax:
      return Fold<ReduceOp::kMax, T>::Run(call);
    case ReduceOp::kProduct:
      return Fold<ReduceOp::kProduct, T>::Run(call);
    default:
      return Fold<ReduceOp::kSum, T>::Run(call);
  }
}

// Complex numbers have no order, and their sums are sums of parts.
template <typename T>
void FoldComplex(const FoldCall& call) {
  if (call.op == ReduceOp::kProduct) return Fold<ReduceOp::kProduct, Complex<T>>::Run(call);
  FoldCall parts = call;
  parts.count = 2 * call.count;
  Fold<ReduceOp::kSum, T>::Run(parts);
}

void FoldByType(const FoldCall& call) {
  switch (call.dtype) {
    case DataType::kUint8:
      return FoldByOp<uint8_t>(call);
    case DataType::kInt8:
      return FoldByOp<int8_t>(call);
    case DataType::kInt16:
      return FoldByOp<int16_t>(call);
    case DataType::kInt32:
      return FoldByOp<int32_t>(call);
    case DataType::kInt64:
      return FoldByOp<int64_t>(call);
    case DataType::kFloat16:
      return FoldByOp<Half>(call);
    case DataType::kBfloat16:
      return FoldByOp<Bfloat16>(call);
    case DataType::kFloat32:
      return FoldByOp<float>(call);
    case DataType::kFloat64:
      return FoldByOp<double>(call);
    case DataType::kBool:
      return FoldByOp<Bool>(call);
    case DataType::kComplex64:
      return FoldComplex<float>(call);
    case DataType::kComplex128:
      return FoldComplex<double>(call);
    case DataType::kFloat8E4m3:
    case DataType::kFloat8E5m2:
      MYDIST_CHECK(false);
  }
}

template <typename T>
void WidenAll(const uint16_t* source, float* output, int64_t count) {
  using L = Lanes<T>;
  const auto* from = reinterpret_cast<const char*>(source);
  auto* to = reinterpret_cast<char*>(output);
  int64_t i = 0;
  for (; i + L::kCount <= count; i += L::kCount) {
    StoreVector(to + 4 * i, L::Widen(LoadVector<typename L::Packed>(from + 2 * i)));
  }
  if (i == count) return;
  const auto wide = L::Widen(LoadPart<typename L::Packed>(from + 2 * i, 2 * (count - i)));
  StorePart(to + 4 * i, wide, 4 * (count - i));
}

template <typename T>
void NarrowAll(const float* source, uint16_t* output, int64_t count) {
  using L = Lanes<T>;
  const auto* from = reinterpret_cast<const char*>(source);
  auto* to = reinterpret_cast<char*>(output);
  int64_t i = 0;
  for (; i + L::kCount <= count; i += L::kCount) {
    StoreVector(to + 2 * i, L::Narrow(LoadVector<typename L::Wide>(from + 4 * i)));
  }
  if (i == count) return;
  const auto narrow = L::Narrow(LoadPart<typename L::Wide>(from + 4 * i, 4 * (count - i)));
  StorePart(to + 2 * i, narrow, 2 * (count - i));
}

}  // namespace
}  // namespace mydist::simd::MYDIST_SIMD_PATH

namespace mydist::simd {

// A constant without code of its own.
constinit const Kernels MYDIST_SIMD_KERNELS = {
    MYDIST_SIMD_PATH::FoldByType,          MYDIST_SIMD_PATH::WidenAll<Half>,
    MYDIST_SIMD_PATH::NarrowAll<Half>,     MYDIST_SIMD_PATH::WidenAll<Bfloat16>,
    MYDIST_SIMD_PATH::NarrowAll<Bfloat16>, MYDIST_SIMD_PATH::AdamwAll,
};

}  // namespace mydist::simd
