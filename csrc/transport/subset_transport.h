// SubsetTransport: the transport of a process set: passes everything on to the job's transport
// under the set's own numbering, in which the collectives of the set think. Owned by the engine,
// one per set and collectives; called like any Transport. Sets never wait for each other: a rank
// that is no member is not asked for anything.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
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

// HostMeter: the job's transport, counting what this rank sends to other hosts.
// Owned by the engine, around the backend's transport; called like any Transport, and read by its
// caller. Every path to the backend leads through it, so the counts hold for all collectives.

class MYDIST_EXPORT HostMeter final : public Transport {
 public:
  // `hosts[r]`: the host of rank r of `inner`.
  HostMeter(std::unique_ptr<Transport> inner, const std::vector<std::string>& hosts);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void SetWatchdog(Watchdog* watchdog) override { inner_->SetWatchdog(watchdog); }
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override;

  // What was sent so far was not for the job.
  void Reset() { sent_bytes_ = sent_count_ = 0; }

  // Of tensors, since it was made or reset. A transfer is one message, however the backend cuts it.
  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t sent_count() const { return sent_count_; }

 private:
  const std::unique_ptr<Transport> inner_;
  std::vector<bool> is_elsewhere_;  // By rank.
  int64_t sent_bytes_ = 0;
  int64_t sent_count_ = 0;
};

}  // namespace mydist
