// Marks what leaves libmydist.so; everything else is compiled with hidden visibility.
#pragma once

#define MYDIST_EXPORT [[gnu::visibility("default")]]

// MYDIST_HOST_DEVICE: marks functions that GPUs run too. Other compilers see nothing of it.

#if defined(__CUDACC__)
#define MYDIST_HOST_DEVICE __host__ __device__
#else
#define MYDIST_HOST_DEVICE
#endif
