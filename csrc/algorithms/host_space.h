// HostSpace: host memory as a MemorySpace: nothing is ever left to be done.
#pragma once

#include <vector>

#include "algorithms/host_ordered_fold.h"
#include "algorithms/memory_space.h"
#include "memory/fusion_buffer.h"

namespace mydist {

class HostSpace final : public MemorySpace {
 public:
  // `groups`: the hosts of the ranks, whose order a fold keeps; without two levels that of ranks.
  explicit HostSpace(const HostGroups& groups) : fold_(groups) {}

  bool Supports(const BatchTraits& traits) const override;
  Result<uint8_t*> ReserveContributions(int64_t bytes) override {
    return contributions_.Reserve(bytes);
  }
  Result<uint8_t*> ReserveResult(int64_t bytes) override { return result_.Reserve(bytes); }
  int64_t scratch_capacity_bytes() const override {
    return contributions_.capacity_bytes() + result_.capacity_bytes() +
           fold_.scratch_capacity_bytes();
  }
  Status Copy(void* target, const void* source, int64_t bytes) override;
  Status Fold(const RankFold& fold) override;
  Status Exchange(TransferBatch& transfers) override { return transfers.Exchange(); }

 private:
  HostOrderedFold fold_;
  FusionBuffer contributions_;
  FusionBuffer result_;
  std::vector<const void*> sources_;  // Of the call in progress; kept for its memory.
};

}  // namespace mydist
