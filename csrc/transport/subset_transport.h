// SubsetTransport: the transport of a process set: passes everything on to the job's transport
// under the set's own numbering, in which the collectives of the set think. Owned by the engine,
// one per set and collectives; called like any Transport. Sets never wait for each other: whoever
// is no member is not asked for anything.
#pragma once

#include <span>
#include <vector>

#include "base/export.h"
#include "transport/transport.h"

namespace mydist {

class MYDIST_EXPORT SubsetTransport final : public Transport {
 public:
  // `base` outlives this object. `ranks`: those of `base` in the set, each once, in the order in
  // which the set counts them, base->rank() among them.
  SubsetTransport(Transport* base, std::vector<int> ranks);

  int rank() const override { return rank_; }  // The index of our rank in the set.
  int size() const override { return static_cast<int>(ranks_.size()); }

  bool TakesDeviceMemory() const override { return base_->TakesDeviceMemory(); }

  // Peers are indices in the set; an error names the rank of `base`. Allocates nothing once the
  // largest call has been seen.
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override;

 private:
  Transport* const base_;
  const std::vector<int> ranks_;
  const int rank_;
  // Kept between calls for their memory only.
  std::vector<SendTransfer> sends_;
  std::vector<ReceiveTransfer> receives_;
};

}  // namespace mydist
