// What a Collectives on device memory is made with, besides its peers.
#pragma once

#include "memory/device/device.h"
#include "memory/device/watched_wait.h"

namespace mydist {

// Calls put their work on `stream`, behind what is there, and may return before it is done; what
// follows on the stream finds the result. Memory stays valid, and unchanged by others, until the
// stream has passed.
struct StreamSeat {
  Device* device = nullptr;  // Not null; outlives whoever has this.
  StreamHandle stream;
  WaitWatch watch{};  // Asked while the host waits for the stream, or for peers to use it.
};

}  // namespace mydist
