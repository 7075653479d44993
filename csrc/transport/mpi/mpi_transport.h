// The transport of the MPI plugin: non-blocking MPI messages on a communicator of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/mpi/mpi_world.h"
#include "transport/transport.h"

namespace mydist {

std::unique_ptr<Transport> MakeMpiTransport(std::shared_ptr<MpiWorld> world);

// The longest piece that a transfer is sent in; must be the same on all ranks. Process-wide, for
// tests.
void SetMpiChunkBytes(int64_t bytes);

}  // namespace mydist
