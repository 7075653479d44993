#include "ops/half.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace mydist {
namespace {

// Inlined into functions for several instruction sets, each then vectorised for its own.
#define MYDIST_ALWAYS_INLINE inline __attribute__((always_inline))

MYDIST_ALWAYS_INLINE void WidenBfloat16Loop(const uint16_t* __restrict source,
                                            float* __restrict output, int64_t count) {
  for (int64_t i = 0; i < count; ++i) output[i] = Bfloat16ToFloat(source[i]);
}

MYDIST_ALWAYS_INLINE void NarrowBfloat16Loop(const float* __restrict source,
                                             uint16_t* __restrict output, int64_t count) {
  for (int64_t i = 0; i < count; ++i) output[i] = FloatToBfloat16(source[i]);
}

void WidenHalfPortable(const uint16_t* source, float* output, int64_t count) {
  for (int64_t i = 0; i < count; ++i) output[i] = HalfToFloat(source[i]);
}

void NarrowHalfPortable(const float* source, uint16_t* output, int64_t count) {
  for (int64_t i = 0; i < count; ++i) output[i] = FloatToHalf(source[i]);
}

void WidenBfloat16Portable(const uint16_t* source, float* output, int64_t count) {
  WidenBfloat16Loop(source, output, count);
}

void NarrowBfloat16Portable(const float* source, uint16_t* output, int64_t count) {
  NarrowBfloat16Loop(source, output, count);
}

struct HalfKernels {
  void (*widen_half)(const uint16_t*, float*, int64_t) = WidenHalfPortable;
  void (*narrow_half)(const float*, uint16_t*, int64_t) = NarrowHalfPortable;
  void (*widen_bfloat16)(const uint16_t*, float*, int64_t) = WidenBfloat16Portable;
  void (*narrow_bfloat16)(const float*, uint16_t*, int64_t) = NarrowBfloat16Portable;
  bool native = false;
};

#if defined(__x86_64__)

__attribute__((target("avx2,f16c"))) void WidenHalfF16c(const uint16_t* source, float* output,
                                                        int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(output + i, _mm256_cvtph_ps(halves));
  }
  WidenHalfPortable(source + i, output + i, count - i);
}

__attribute__((target("avx2,f16c"))) void NarrowHalfF16c(const float* source, uint16_t* output,
                                                         int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(output + i), halves);
  }
  NarrowHalfPortable(source + i, output + i, count - i);
}

__attribute__((target("avx2"))) void WidenBfloat16Avx2(const uint16_t* source, float* output,
                                                       int64_t count) {
  WidenBfloat16Loop(source, output, count);
}

__attribute__((target("avx2"))) void NarrowBfloat16Avx2(const float* source, uint16_t* output,
                                                        int64_t count) {
  NarrowBfloat16Loop(source, output, count);
}

bool CpuConvertsHalves() {
  constexpr unsigned int kF16cBit = 1u << 29;
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kF16cBit) == 0) return false;
  return __builtin_cpu_supports("avx2") != 0;  // Also asks whether the system saves the registers.
}

HalfKernels ChooseKernels() {
  if (!CpuConvertsHalves()) return {};
  return {WidenHalfF16c, NarrowHalfF16c, WidenBfloat16Avx2, NarrowBfloat16Avx2, true};
}

#else

HalfKernels ChooseKernels() { return {}; }

#endif

const HalfKernels& Kernels() {
  static const HalfKernels kernels = ChooseKernels();
  return kernels;
}

}  // namespace

void WidenHalf(const uint16_t* source, float* output, int64_t count) {
  Kernels().widen_half(source, output, count);
}

void NarrowHalf(const float* source, uint16_t* output, int64_t count) {
  Kernels().narrow_half(source, output, count);
}

void WidenBfloat16(const uint16_t* source, float* output, int64_t count) {
  Kernels().widen_bfloat16(source, output, count);
}

void NarrowBfloat16(const float* source, uint16_t* output, int64_t count) {
  Kernels().narrow_bfloat16(source, output, count);
}

bool HasHalfInstructions() { return Kernels().native; }

}  // namespace mydist
