#include "backends/mpi/cuda_aware.h"

// Open MPI's and MPICH's extension, declared here: the headers that have it differ, and an MPI may
// lack it.
extern "C" __attribute__((weak)) int MPIX_Query_cuda_support(void);

namespace mydist {

bool IsCudaAware() { return MPIX_Query_cuda_support != nullptr && MPIX_Query_cuda_support() != 0; }

}  // namespace mydist
