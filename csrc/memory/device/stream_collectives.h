// What a Collectives on device memory is made with, besides its peers.
#pragma once

#include <functional>

#include "base/export.h"
#include "base/status.h"
#include "memory/device/device.h"

namespace mydist {

// WaitWatched: how the host waits for a device whose work may itself wait for other ranks: a peer
// that is lost must not keep it for ever. Called by whoever drives the engine.

// Whether waiting still makes sense: OK, or what has happened meanwhile, such as the loss of a
// peer. Never waits. Null: nothing can happen.
using WaitWatch = std::function<Status()>;

// Keeps this thread until the event is over or `watch` says why not, which is then returned; asks
// it some ten thousand times a second and gives up its core in between. Errors: those of the
// device.
MYDIST_EXPORT Status WaitWatched(Device& device, const DeviceEvent& event, const WaitWatch& watch);

// Calls put their work on `stream`, behind what is there, and may return before it is done; what
// follows on the stream finds the result. Memory stays valid, and unchanged by others, until the
// stream has passed.
struct StreamSeat {
  Device* device = nullptr;  // Not null; outlives whoever has this.
  StreamHandle stream;
  WaitWatch watch{};  // Asked while the host waits for the stream.
};

}  // namespace mydist
