// SimdPath: which build of the kernels this process uses; chosen once, from the CPU or by
// MYDIST_SIMD. Thread-safe. The choice changes speed only, never a bit of a result, so ranks need
// not agree on it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/export.h"
#include "base/status.h"
#include "kernels/simd/kernels.h"

namespace mydist::simd {

enum class SimdPath : uint8_t { kPortable, kAvx2, kAvx512 };
inline constexpr std::array kAllSimdPaths = {SimdPath::kPortable, SimdPath::kAvx2,
                                             SimdPath::kAvx512};

// The word of MYDIST_SIMD: "portable", "avx2" or "avx512".
std::string_view SimdPathName(SimdPath path);
// Whether CPU and operating system can run it; the portable path always.
bool CpuHas(SimdPath path);
// The kernels of one path, which the CPU must have.
const Kernels& KernelsOf(SimdPath path);

// What the process uses: the widest path the CPU has, until UseSimd says otherwise.
SimdPath CurrentPath();
const Kernels& CurrentKernels();

// `word` is a path's name or "auto". kInvalidArgument naming what this CPU has when it lacks the
// path; nothing changes then.
[[nodiscard]] Status UseSimd(std::string_view word);

}  // namespace mydist::simd
