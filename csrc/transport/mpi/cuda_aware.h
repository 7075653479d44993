// Whether the MPI of this process moves memory of GPUs (is CUDA-aware). Any thread, after MPI_Init:
// MPI learns only there what it has been told to do.
#pragma once

#include <string_view>

#include "config/config.h"

namespace mydist {

// What an MPI tells with MPIX_Query_cuda_support.
enum class CudaAnswer {
  kIsOfNow,       // What it does in this process.
  kIsOfItsBuild,  // What it could do; packages are built so and switch it off (conda-forge's).
  kIsUnknown,     // Of MVAPICH2 and others it also takes a variable of their own.
};

// By what MPI_Get_library_version says.
constexpr CudaAnswer CudaAnswerOf(std::string_view library) {
  constexpr std::string_view kOpenMpi = "Open MPI v";
  if (library.starts_with("MPICH Version:")) return CudaAnswer::kIsOfNow;
  if (!library.starts_with(kOpenMpi)) return CudaAnswer::kIsUnknown;
  library.remove_prefix(kOpenMpi.size());
  const bool has_one_digit = library.size() > 1 && library[1] == '.';
  return has_one_digit && library[0] < '5' ? CudaAnswer::kIsOfItsBuild : CudaAnswer::kIsOfNow;
}

// As the MPI called `library` says itself; false where what it says is not about this process.
bool IsCudaAware(std::string_view library);

// As it is told to, else as it says itself: one that leaves such memory to a library below (UCX)
// may not know.
inline bool TakesDeviceMemory(CudaAwareMpiChoice choice, std::string_view library) {
  return choice == CudaAwareMpiChoice::kAuto ? IsCudaAware(library)
                                             : choice == CudaAwareMpiChoice::kOn;
}

}  // namespace mydist
