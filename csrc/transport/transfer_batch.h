// TransferBatch: collects what a step of a collective sends and receives, then moves it at once.
// Owned by an implementation of collectives and driven by its one caller. Keeps its memory between
// steps.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"

namespace mydist {

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

  bool empty() const { return sends_.empty() && receives_.empty(); }

  // Performs what has been collected, and forgets it; errors are those of Transport::Exchange.
  Status Exchange() {
    if (empty()) return Status::Ok();
    const Status status = transport_->Exchange(sends_, receives_);
    Forget();
    return status;
  }

  void Forget() {
    sends_.clear();
    receives_.clear();
  }

 private:
  Transport* const transport_;
  std::vector<SendTransfer> sends_;
  std::vector<ReceiveTransfer> receives_;
};

}  // namespace mydist
