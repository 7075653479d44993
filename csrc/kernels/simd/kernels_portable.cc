// Vectors that every CPU of this architecture has.
#define MYDIST_SIMD_PATH portable
#define MYDIST_SIMD_KERNELS kPortableKernels
#define MYDIST_SIMD_BYTES 16
#include "kernels/simd/fold_lanes.h"
