// For CPUs with AVX-512 F, BW, VL and DQ; compiled with the flags of cmake/core.cmake.
#if defined(__x86_64__)
#define MYDIST_SIMD_PATH avx512
#define MYDIST_SIMD_KERNELS kAvx512Kernels
#define MYDIST_SIMD_BYTES 64
#include "kernels/simd/fold_lanes.h"
#endif
