// Lanes: a vector of elements of one type, as stored (Packed) and as computed with (Wide); part of
// kernels_*.cc only, once for each path. 16-bit floats are computed with as float32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/element.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mydist::simd::MYDIST_SIMD_PATH {

// Vectors and how they come from memory and go there; part of kernels_*.cc only, once for each
// path. Everything is local to the file and inlined: a function that the linker could take for
// other files would run on CPUs that lack its instructions.

namespace {

constexpr int kVectorBytes = MYDIST_SIMD_BYTES;

template <typename T, int kCount>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kCount * sizeof(T))));
};
template <typename T>
using Vector = typename VectorOf<T, kVectorBytes / static_cast<int>(sizeof(T))>::Type;

// As it lies in memory: at any address, and whatever else is stored there.
template <typename V>
struct InMemory {
  typedef V Type __attribute__((aligned(1), may_alias));
};

template <typename To, typename From>
MYDIST_ALWAYS_INLINE To BitsAs(const From& from) {
  return __builtin_bit_cast(To, from);
}

// memcpy would do, but GCC takes it apart for vectors of more than 16 bytes.
template <typename V>
MYDIST_ALWAYS_INLINE V LoadVector(const char* memory) {
  return *reinterpret_cast<const typename InMemory<V>::Type*>(memory);
}

template <typename V>
MYDIST_ALWAYS_INLINE void StoreVector(char* memory, const V& vector) {
  *reinterpret_cast<typename InMemory<V>::Type*>(memory) = vector;
}

// 0 to 2 × kStep - 1 bytes in steps the compiler knows the size of.
template <size_t kStep>
MYDIST_ALWAYS_INLINE void CopyFewBytes(char* output, const char* source, int64_t bytes) {
  if ((bytes & kStep) != 0) {
    __builtin_memcpy(output, source, kStep);
    output += kStep;
    source += kStep;
  }
  if constexpr (kStep > 1) CopyFewBytes<kStep / 2>(output, source, bytes);
}

// Fewer bytes than a vector has. Not inlined: inlined everywhere it triples the code.
[[maybe_unused, gnu::noinline]] void CopyPart(char* output, const char* source, int64_t bytes) {
  CopyFewBytes<kVectorBytes / 2>(output, source, bytes);
}

// The first `bytes` from memory, fewer than the vector has; the others are 0.
template <typename V>
MYDIST_ALWAYS_INLINE V LoadPart(const char* memory, int64_t bytes) {
#if MYDIST_SIMD_BYTES >= 64
  const uint64_t mask = (uint64_t{1} << bytes) - 1;
  if constexpr (sizeof(V) == 64) {
    return BitsAs<V>(_mm512_maskz_loadu_epi8(mask, memory));
  } else {
    static_assert(sizeof(V) == 32);
    return BitsAs<V>(_mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), memory));
  }
#else
  V vector = {};
  CopyPart(reinterpret_cast<char*>(&vector), memory, bytes);
  return vector;
#endif
}

template <typename V>
MYDIST_ALWAYS_INLINE void StorePart(char* memory, const V& vector, int64_t bytes) {
#if MYDIST_SIMD_BYTES >= 64
  const uint64_t mask = (uint64_t{1} << bytes) - 1;
  if constexpr (sizeof(V) == 64) {
    _mm512_mask_storeu_epi8(memory, mask, BitsAs<__m512i>(vector));
  } else {
    static_assert(sizeof(V) == 32);
    _mm256_mask_storeu_epi8(memory, static_cast<__mmask32>(mask), BitsAs<__m256i>(vector));
  }
#else
  CopyPart(memory, reinterpret_cast<const char*>(&vector), bytes);
#endif
}

}  // namespace

namespace {

// As many lanes as a vector holds; all types but those below are computed with as they are.
template <typename T>
struct Lanes {
  using Wide = Vector<T>;
  using Packed = Wide;
  static constexpr int kCount = kVectorBytes / static_cast<int>(sizeof(T));
  static MYDIST_ALWAYS_INLINE Wide Widen(const Packed& packed) { return packed; }
  static MYDIST_ALWAYS_INLINE Packed Narrow(const Wide& wide) { return wide; }
  // The same where NaN is canonical already.
  static MYDIST_ALWAYS_INLINE Packed NarrowCanonical(const Wide& wide) { return wide; }
};

using FloatVector = Vector<float>;
using FloatBits = Vector<uint32_t>;
constexpr int kFloatCount = kVectorBytes / 4;
using ShortVector = typename VectorOf<uint16_t, kFloatCount>::Type;

template <>
struct Lanes<Half> {
  using Wide = FloatVector;
  using Packed = ShortVector;
  static constexpr int kCount = kFloatCount;

#if MYDIST_SIMD_BYTES == 64
  static MYDIST_ALWAYS_INLINE Wide Widen(const Packed& packed) {
    return BitsAs<Wide>(_mm512_maskz_cvtph_ps(0xffff, BitsAs<__m256i>(packed)));
  }
  static MYDIST_ALWAYS_INLINE Packed Narrow(const Wide& wide) {
    return BitsAs<Packed>(
        _mm512_maskz_cvtps_ph(0xffff, BitsAs<__m512>(wide), _MM_FROUND_TO_NEAREST_INT));
  }
#elif MYDIST_SIMD_BYTES == 32
  static MYDIST_ALWAYS_INLINE Wide Widen(const Packed& packed) {
    return BitsAs<Wide>(_mm256_cvtph_ps(BitsAs<__m128i>(packed)));
  }
  static MYDIST_ALWAYS_INLINE Packed Narrow(const Wide& wide) {
    return BitsAs<Packed>(_mm256_cvtps_ph(BitsAs<__m256>(wide), _MM_FROUND_TO_NEAREST_INT));
  }
#else
  static Wide Widen(const Packed& packed) {
    Wide wide;
    for (int i = 0; i < kCount; ++i) wide[i] = HalfToFloat(packed[i]);
    return wide;
  }
  static Packed Narrow(const Wide& wide) {
    Packed packed;
    for (int i = 0; i < kCount; ++i) packed[i] = FloatToHalf(wide[i]);
    return packed;
  }
#endif

  static MYDIST_ALWAYS_INLINE Packed NarrowCanonical(const Wide& wide) {
#if MYDIST_SIMD_BYTES < 32
    NoteOverflow(wide);
#endif
    return Narrow(wide);
  }

 private:
  // As the CPU does where it converts by itself: see reduction.cc.
  [[maybe_unused]] static void NoteOverflow(const Wide& wide) {
    for (int i = 0; i < kCount; ++i) {
      const auto magnitude = BitsAs<uint32_t>(static_cast<float>(wide[i])) & 0x7fffffffu;
      if (magnitude < 0x477ff000u || magnitude >= 0x7f800000u) continue;  // From 65520 on.
      volatile float high = 3e38F;
      high = high * high;
    }
  }
};

template <>
struct Lanes<Bfloat16> {
  using Wide = FloatVector;
  using Packed = ShortVector;
  static constexpr int kCount = kFloatCount;

  static MYDIST_ALWAYS_INLINE Wide Widen(const Packed& packed) {
#if MYDIST_SIMD_BYTES == 64
    const auto bits =
        BitsAs<FloatBits>(_mm512_maskz_cvtepu16_epi32(0xffff, BitsAs<__m256i>(packed)));
#elif MYDIST_SIMD_BYTES == 32
    const auto bits = BitsAs<FloatBits>(_mm256_cvtepu16_epi32(BitsAs<__m128i>(packed)));
#else
    const FloatBits bits = __builtin_convertvector(packed, FloatBits);
#endif
    return BitsAs<Wide>(bits << 16);
  }

  // FloatToBfloat16 of element.h, lane by lane; AVX512_BF16 would flush subnormals.
  static MYDIST_ALWAYS_INLINE Packed Narrow(const Wide& wide) {
    const auto bits = BitsAs<FloatBits>(wide);
    const FloatBits quiet = bits >> 16 | 0x40u;
    const FloatBits narrow = (bits & 0x7fffffffu) > 0x7f800000u ? quiet : Rounded(bits);
    return __builtin_convertvector(narrow, Packed);
  }

  // Rounding leaves the canonical NaN as it is.
  static MYDIST_ALWAYS_INLINE Packed NarrowCanonical(const Wide& wide) {
    return __builtin_convertvector(Rounded(BitsAs<FloatBits>(wide)), Packed);
  }

 private:
  static MYDIST_ALWAYS_INLINE FloatBits Rounded(const FloatBits& bits) {
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  }
};

// Any byte but 0 is true.
template <>
struct Lanes<Bool> {
  using Wide = Vector<uint8_t>;
  using Packed = Wide;
  static constexpr int kCount = kVectorBytes;
  static MYDIST_ALWAYS_INLINE Wide Widen(const Packed& packed) {
    return BitsAs<Wide>(packed != 0) & 1;
  }
  static MYDIST_ALWAYS_INLINE Packed NarrowCanonical(const Wide& wide) { return wide; }
};

// Real and imaginary parts by turns.
template <typename T>
struct Lanes<Complex<T>> : Lanes<T> {
  static constexpr int kCount = Lanes<T>::kCount / 2;
};

}  // namespace

}  // namespace mydist::simd::MYDIST_SIMD_PATH
