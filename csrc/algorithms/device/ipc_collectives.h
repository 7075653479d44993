// IpcCollectives: small allreduces of ranks whose GPUs are in one host, by a kernel that reads the
// others' memory (reduce); nothing else. Puts its work on the link's stream and returns.
// Owned by the engine, used by whoever drives it. The bits are those of host memory: the order is
// that of the ranks, and 16-bit floats are rounded once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "algorithms/collectives.h"
#include "algorithms/device/ipc_link.h"
#include "base/export.h"

namespace mydist {

class MYDIST_EXPORT IpcCollectives final : public Collectives {
 public:
  // For batches of at most `limit_bytes`, the same on all ranks.
  IpcCollectives(std::shared_ptr<IpcLink> link, int64_t limit_bytes)
      : link_(std::move(link)), limit_bytes_(limit_bytes) {}

  bool Supports(const BatchTraits& traits) const override;
  // Of any size, piece by piece.
  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override;

 private:
  const std::shared_ptr<IpcLink> link_;
  const int64_t limit_bytes_;
};

}  // namespace mydist
