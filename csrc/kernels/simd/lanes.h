// Lanes: a vector of elements of one type, as stored (Packed) and as computed with (Wide); part of
// kernels_*.cc only, once for each path. 16-bit floats are computed with as float32.
#pragma once

#include <cstdint>

#include "kernels/element.h"
#include "kernels/simd/vector_memory.h"

namespace mydist::simd::MYDIST_SIMD_PATH {
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

  static MYDIST_ALWAYS_INLINE Packed NarrowCanonical(const Wide& wide) { return Narrow(wide); }
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
