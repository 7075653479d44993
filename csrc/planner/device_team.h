// DeviceTeam: what serves one process set on one GPU of this rank: host memory on the way at first,
// NCCL, and the kernel between GPUs of a host, once all ranks of the set have agreed on it, at the
// first batch that needs them all.
// Owned by the executor, used by whoever drives the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "algorithms/collectives.h"
#include "base/status.h"
#include "planner/device_choice.h"
#include "planner/device_links.h"
#include "planner/fact_board.h"

namespace mydist {

class DeviceTeam {
 public:
  // All outlive the team, and `members` what it points to.
  struct Surroundings {
    const DeviceChoice* choice = nullptr;
    DeviceLinks* links = nullptr;
    FactBoard* facts = nullptr;
  };
  DeviceTeam(const Surroundings& surroundings, DeviceSeat* seat, const DeviceMembers& members);
  // Waits for what is on the stream, of which nothing waits for another rank any more: the team, or
  // all links, have been closed or aborted.
  ~DeviceTeam();
  DeviceTeam(const DeviceTeam&) = delete;
  DeviceTeam& operator=(const DeviceTeam&) = delete;

  // What runs such a batch, for which all its ranks call this; the first time it blocks until all
  // have. Errors of DeviceChoice; kInternal when nothing does.
  Result<Collectives*> For(const BatchTraits& traits);

  // The last call, on all ranks of the set at the same point. Blocks until their GPUs are through
  // with what they do together. What the seat's watch says; errors of DeviceLink.
  Status Close();

 private:
  // What of it goes from GPU to GPU.
  struct IpcPath {
    int64_t limit_bytes = 0;  // 0: nothing.
    std::string why;
  };

  Status Agree();
  Result<IpcPath> TryIpc(GpuIpcChoice use);
  Result<std::string> TryOut(IpcLink& link);
  Result<uint8_t*> ReserveForTrial();
  void LeaveOut(const std::shared_ptr<IpcLink>& link, const std::string& why);
  Result<int64_t> MeasureIpc(const std::shared_ptr<IpcLink>& link);
  void Announce(const DeviceAgreement& agreed, const IpcPath& ipc) const;

  const Surroundings surroundings_;
  DeviceSeat* const seat_;
  const DeviceMembers members_;
  bool has_agreed_ = false;
  DeviceParts parts_;
  // The stream may still use them: a link whose trial has failed, and pinned memory of the trial.
  std::shared_ptr<IpcLink> left_out_;
  std::shared_ptr<uint8_t> trial_memory_;
};

}  // namespace mydist
