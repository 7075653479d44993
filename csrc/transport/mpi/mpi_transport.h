// MpiTransport: Transport over non-blocking MPI messages on a communicator of its own.
// Long transfers go in pieces of chunk_bytes, since MPI counts are ints, short ones in pieces that
// MPI sends at once. One tag for all: MPI keeps the order per pair of ranks.
#pragma once

#include <mpi.h>

#include <atomic>
#include <memory>
#include <vector>

#include "transport/mpi/mpi_world.h"
#include "transport/mpi/poll_backoff.h"
#include "transport/transport.h"

namespace mydist {

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(std::shared_ptr<MpiWorld> world) : world_(std::move(world)) {}

  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  void SetWatchdog(Watchdog* watchdog) override { watchdog_ = watchdog; }
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override;

  // Longest piece a transfer is sent in; must be the same on all ranks. Process-wide, for tests.
  static std::atomic<int64_t> chunk_bytes;

 private:
  static constexpr int kTensorTag = 1;

  Status PostAll(std::span<const SendTransfer> sends, std::span<const ReceiveTransfer> receives);
  Status AwaitAll();
  // A rank of a transfer under way that has said goodbye: it will not do its part. -1: none.
  Result<int> DepartedPeer() const;
  // The ranks of transfers under way.
  std::span<const int> AwaitedPeers();
  // Gives up on what is still under way after an error.
  void Abandon();

  const std::shared_ptr<MpiWorld> world_;
  Watchdog* watchdog_ = nullptr;
  // Parallel arrays, empty between calls; kept for their memory.
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
  size_t receive_count_ = 0;  // They come first.
  std::vector<int> completed_;
  std::vector<int> awaited_;
};

}  // namespace mydist
