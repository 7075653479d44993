// HostMeter: the job's transport, counting what this rank sends to other hosts.
// Owned by the engine, around the backend's transport; called like any Transport, and read by its
// caller. Every path to the backend leads through it, so the counts hold for all collectives.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/export.h"
#include "transport/transport.h"

namespace mydist {

class MYDIST_EXPORT HostMeter final : public Transport {
 public:
  // `hosts[r]`: the host of rank r of `inner`.
  HostMeter(std::unique_ptr<Transport> inner, const std::vector<std::string>& hosts);

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool TakesDeviceMemory() const override { return inner_->TakesDeviceMemory(); }
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
