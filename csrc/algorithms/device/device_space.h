// DeviceSpace: the memory of a GPU as a MemorySpace, for transports that take it (CUDA-aware MPI).
// Copies and folds go to the stream; the host waits for the stream before peers may read or write,
// so that one which does not know streams finds memory as it does on the host.
// For one stream, made for its owner as in algorithms/memory_space.h.
#pragma once

#include "algorithms/host_space.h"
#include "base/export.h"
#include "memory/device/device_memory.h"
#include "memory/device/stream_collectives.h"

namespace mydist {

class MYDIST_EXPORT DeviceSpace final : public MemorySpace {
 public:
  // Without `folds` it serves what only moves bytes.
  DeviceSpace(const StreamSeat& seat, bool folds)
      : seat_(seat), folds_(folds), contributions_(seat), result_(seat) {}

  bool Supports(const BatchTraits& traits) const override;
  Result<uint8_t*> ReserveContributions(int64_t bytes) override {
    return contributions_.Reserve(bytes);
  }
  Result<uint8_t*> ReserveResult(int64_t bytes) override { return result_.Reserve(bytes); }
  int64_t scratch_capacity_bytes() const override {
    return contributions_.capacity_bytes() + result_.capacity_bytes();
  }
  Status Copy(void* target, const void* source, int64_t bytes) override;
  Status Fold(const RankFold& fold) override;
  // Errors also: those of the seat's watch.
  Status Exchange(TransferBatch& transfers) override;

 private:
  const StreamSeat seat_;
  const bool folds_;
  DeviceMemory contributions_;
  DeviceMemory result_;
};

}  // namespace mydist
