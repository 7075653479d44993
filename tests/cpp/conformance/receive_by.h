// ReceiveBy: what a thread does that both waits for news and takes it.
#pragma once

#include <optional>

#include "transport/control_plane.h"

namespace mydist::conformance {

// The next message or loss; nothing when `deadline` passes first.
inline Result<std::optional<IncomingMessage>> ReceiveBy(ControlPlane& plane, TimePoint deadline) {
  while (true) {
    Result<std::optional<IncomingMessage>> got = plane.Receive();
    if (!got.ok() || got->has_value() || Now() >= deadline) return got;
    plane.Await(deadline);
  }
}

}  // namespace mydist::conformance
