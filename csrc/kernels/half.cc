#include "kernels/half.h"

#include "kernels/simd/simd_path.h"

namespace mydist {

void WidenHalf(const uint16_t* source, float* output, int64_t count) {
  simd::CurrentKernels().widen_half(source, output, count);
}

void NarrowHalf(const float* source, uint16_t* output, int64_t count) {
  simd::CurrentKernels().narrow_half(source, output, count);
}

void WidenBfloat16(const uint16_t* source, float* output, int64_t count) {
  simd::CurrentKernels().widen_bfloat16(source, output, count);
}

void NarrowBfloat16(const float* source, uint16_t* output, int64_t count) {
  simd::CurrentKernels().narrow_bfloat16(source, output, count);
}

}  // namespace mydist
