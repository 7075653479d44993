#include "transport/mpi/cuda_aware.h"

#include <mpi.h>

// Open MPI's and MPICH's extension, declared here: the headers that have it differ, and an MPI may
// lack it.
extern "C" __attribute__((weak)) int MPIX_Query_cuda_support(void);

namespace mydist {
namespace {

// An integer among the control variables of MPI's tool interface; false where there is none.
bool IsSet(const char* variable) {
  int provided = 0;
  if (MPI_T_init_thread(MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) return false;
  int index = 0;
  int count = 0;
  int value = 0;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  if (MPI_T_cvar_get_index(variable, &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    if (count != 1 || MPI_T_cvar_read(handle, &value) != MPI_SUCCESS) value = 0;
    (void)MPI_T_cvar_handle_free(&handle);
  }
  (void)MPI_T_finalize();
  return value != 0;
}

}  // namespace

bool IsCudaAware(std::string_view library) {
  if (MPIX_Query_cuda_support == nullptr || MPIX_Query_cuda_support() == 0) return false;
  switch (CudaAnswerOf(library)) {
    case CudaAnswer::kIsOfNow:
      return true;
    case CudaAnswer::kIsOfItsBuild:
      return IsSet("opal_cuda_support");
    case CudaAnswer::kIsUnknown:
      return false;
  }
  return false;
}

}  // namespace mydist
