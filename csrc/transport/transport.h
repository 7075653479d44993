// Transport: moves bytes of tensors between ranks; implemented by the backends.
// Owned by the engine, called by the thread that drives it, one call at a time. A backend only
// moves bytes: all algorithms and reductions are ours (algorithms/), so results do not depend on
// the backend.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/element.h"
#include "world/watchdog.h"

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

  // From now on Exchange asks it, at kLookInterval, whether to wait on; an error of it ends the
  // call. Not null; outlives this object. A backend that does not ask waits without end.
  virtual void SetWatchdog(Watchdog* /*watchdog*/) {}

  // Performs all transfers at once and returns when all are complete: `receives` are filled,
  // `sends` may be reused. Peers are ranks other than our own. The k-th send from a to b matches
  // the k-th receive at b from a; their sizes are equal (the controller has agreed on them). 0
  // bytes: no message at all. Sizes may exceed 2^31: the backend chunks. Memory must stay valid
  // during the call. kPeerLost naming the peer when a connection breaks; kInternal for a backend's
  // own failure.
  virtual Status Exchange(std::span<const SendTransfer> sends,
                          std::span<const ReceiveTransfer> receives) = 0;
};

// TransferBatch: collects what a step of a collective sends and receives, then moves it at once.
// Owned by an implementation of collectives and driven by its one caller. Keeps its memory between
// steps.

class TransferBatch {
 public:
  // `transport` outlives this object; null when there are no peers.
  explicit TransferBatch(Transport* transport) : transport_(transport) {}

  // Memory stays valid until Exchange returns. Transfers of 0 bytes are left out.
  void Send(int peer, const uint8_t* data, int64_t bytes) {
    if (bytes > 0) sends_.push_back({peer, data, bytes});
  }
  void Receive(int peer, uint8_t* data, int64_t bytes) {
    if (bytes > 0) receives_.push_back({peer, data, bytes});
  }

  // Performs what has been collected, and forgets it; errors are those of Transport::Exchange.
  Status Exchange() {
    if (sends_.empty() && receives_.empty()) return Status::Ok();
    const Status status = transport_->Exchange(sends_, receives_);
    sends_.clear();
    receives_.clear();
    return status;
  }

  // Every rank hands out its slice of `data`, in elements; the errors of Exchange.
  Status HandOut(uint8_t* data, std::span<const Slice> slices, int64_t element_bytes) {
    if (transport_ == nullptr) return Status::Ok();
    const Slice own = slices[static_cast<size_t>(transport_->rank())];
    for (int peer = 0; peer < transport_->size(); ++peer) {
      if (peer == transport_->rank()) continue;
      const Slice theirs = slices[static_cast<size_t>(peer)];
      Send(peer, Advance(data, own.offset * element_bytes), own.count * element_bytes);
      Receive(peer, Advance(data, theirs.offset * element_bytes), theirs.count * element_bytes);
    }
    return Exchange();
  }

 private:
  Transport* const transport_;
  std::vector<SendTransfer> sends_;
  std::vector<ReceiveTransfer> receives_;
};

// Splits one long transfer into pieces below a backend's limit. Both ends split alike, because they
// agree on the transfer's size and use the same limit.

// Number of pieces; 0 for 0 bytes.
inline int64_t ChunkCount(int64_t bytes, int64_t chunk_bytes) {
  return bytes <= 0 ? 0 : (bytes - 1) / chunk_bytes + 1;
}

// Calls visit(offset, length) for each piece in order, all but the last `chunk_bytes` long.
template <typename Visit>
void ForEachChunk(int64_t bytes, int64_t chunk_bytes, Visit visit) {
  for (int64_t offset = 0; offset < bytes; offset += chunk_bytes) {
    visit(offset, std::min(chunk_bytes, bytes - offset));
  }
}

}  // namespace mydist
