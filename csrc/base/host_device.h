// MYDIST_HOST_DEVICE: marks functions that GPUs run too. Other compilers see nothing of it.
#pragma once

#if defined(__CUDACC__)
#define MYDIST_HOST_DEVICE __host__ __device__
#else
#define MYDIST_HOST_DEVICE
#endif
