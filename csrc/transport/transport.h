// Transport: moves bytes of tensors between ranks; implemented by the backends.
// Owned by the engine, called by whoever drives it, one call at a time. A backend only moves bytes:
// all algorithms and reductions are ours (ops/), so results do not depend on the backend.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace mydist {

struct SendTransfer {
  int peer;
  const void* data;
  int64_t bytes;
};

struct ReceiveTransfer {
  int peer;
  void* data;
  int64_t bytes;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Whether memory of a GPU may be sent and received like any other, once the device is through
  // with it. The same as long as the transport lives; ranks may differ.
  virtual bool TakesDeviceMemory() const { return false; }

  // Performs all transfers at once and returns when all are complete: `receives` are filled,
  // `sends` may be reused. Peers are ranks other than our own. The k-th send from a to b matches
  // the k-th receive at b from a; their sizes are equal (the controller has agreed on them). 0
  // bytes: no message at all. Sizes may exceed 2^31: the backend chunks. Memory must stay valid
  // during the call. kPeerLost naming the peer when a connection breaks; kInternal for a backend's
  // own failure.
  virtual Status Exchange(std::span<const SendTransfer> sends,
                          std::span<const ReceiveTransfer> receives) = 0;
};

}  // namespace mydist
