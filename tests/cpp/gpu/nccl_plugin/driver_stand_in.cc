// A library that looks like NVIDIA's driver to CUDA's runtime, for as long as that finds out
// whether it can use it: of version STAND_IN_VERSION, and starting answers STAND_IN_START. With
// STAND_IN_LACKS_CONTEXTS it is too old to make a context current.
#include <cstring>

#include "base/export.h"

extern "C" {

MYDIST_EXPORT int cuDriverGetVersion(int* version) {
  *version = STAND_IN_VERSION;
  return 0;
}

MYDIST_EXPORT int cuInit(unsigned) { return STAND_IN_START; }

// All others; nobody gets so far as to call one.
MYDIST_EXPORT int cuDeviceGet() { return 999; }
MYDIST_EXPORT int cuGetErrorName() { return 999; }
MYDIST_EXPORT int cuDevicePrimaryCtxRetain() { return 999; }
MYDIST_EXPORT int cuDevicePrimaryCtxRelease_v2() { return 999; }
#ifndef STAND_IN_LACKS_CONTEXTS
MYDIST_EXPORT int cuCtxPushCurrent_v2() { return 999; }
MYDIST_EXPORT int cuCtxPopCurrent_v2() { return 999; }
#endif

// How the runtime asks for functions; has all that it may ask for.
MYDIST_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long long,
                                      int* found) {
  const auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
  *function = reinterpret_cast<void*>(&cuDeviceGet);
  if (is("cuInit")) *function = reinterpret_cast<void*>(&cuInit);
  if (is("cuDriverGetVersion")) *function = reinterpret_cast<void*>(&cuDriverGetVersion);
  if (is("cuGetProcAddress")) *function = reinterpret_cast<void*>(&cuGetProcAddress_v2);
  if (found != nullptr) *found = 0;
  return 0;
}

}  // extern "C"
