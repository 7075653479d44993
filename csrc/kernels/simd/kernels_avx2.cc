// For CPUs with AVX2 and F16C; compiled with the flags of cmake/core.cmake.
#if defined(__x86_64__)
#define MYDIST_SIMD_PATH avx2
#define MYDIST_SIMD_KERNELS kAvx2Kernels
#define MYDIST_SIMD_BYTES 32
#include "kernels/simd/fold_lanes.h"
#endif
