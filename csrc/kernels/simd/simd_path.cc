#include "kernels/simd/simd_path.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace mydist::simd {
namespace {

#if defined(__x86_64__)

bool CpuConvertsHalves() {
  constexpr unsigned int kF16cBit = 1u << 29;
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kF16cBit) != 0;
}

// __builtin_cpu_supports also asks whether the system saves the registers.
bool CpuHasAvx2() { return __builtin_cpu_supports("avx2") != 0 && CpuConvertsHalves(); }

bool CpuHasAvx512() {
  return CpuHasAvx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0;
}

#else

bool CpuHasAvx2() { return false; }
bool CpuHasAvx512() { return false; }

#endif

SimdPath WidestPath() {
  SimdPath widest = SimdPath::kPortable;
  for (const SimdPath path : kAllSimdPaths) {
    if (CpuHas(path)) widest = path;
  }
  return widest;
}

std::atomic<SimdPath>& Choice() {
  static std::atomic<SimdPath> choice{WidestPath()};
  return choice;
}

std::string NamesOfPaths() {
  std::string names;
  for (const SimdPath path : kAllSimdPaths) {
    if (CpuHas(path)) names += (names.empty() ? "" : ", ") + std::string(SimdPathName(path));
  }
  return names;
}

}  // namespace

std::string_view SimdPathName(SimdPath path) {
  constexpr std::array<std::string_view, kAllSimdPaths.size()> kNames = {"portable", "avx2",
                                                                         "avx512"};
  return kNames[static_cast<size_t>(path)];
}

bool CpuHas(SimdPath path) {
  switch (path) {
    case SimdPath::kPortable:
      return true;
    case SimdPath::kAvx2:
      return CpuHasAvx2();
    case SimdPath::kAvx512:
      return CpuHasAvx512();
  }
  MYDIST_CHECK(false);
}

const Kernels& KernelsOf(SimdPath path) {
#if defined(__x86_64__)
  if (path == SimdPath::kAvx512) return kAvx512Kernels;
  if (path == SimdPath::kAvx2) return kAvx2Kernels;
#endif
  MYDIST_CHECK(path == SimdPath::kPortable);
  return kPortableKernels;
}

SimdPath CurrentPath() { return Choice().load(std::memory_order_relaxed); }

const Kernels& CurrentKernels() { return KernelsOf(CurrentPath()); }

Status UseSimd(std::string_view word) {
  if (word == "auto") {
    Choice().store(WidestPath());
    return Status::Ok();
  }
  for (const SimdPath path : kAllSimdPaths) {
    if (word != SimdPathName(path) || !CpuHas(path)) continue;
    Choice().store(path);
    return Status::Ok();
  }
  return Status::InvalidArgument("this CPU does not support MYDIST_SIMD=" + std::string(word) +
                                 "; it supports " + NamesOfPaths() +
                                 ". Choose one of these, or auto");
}

}  // namespace mydist::simd
