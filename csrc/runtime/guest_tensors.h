// GuestTensors: the tensors of a batch that lie on another GPU of this process than the one with
// which it takes part in the process set: each has a stand-in on that one (its host) for the time
// of the batch. Ranks need not know: they have agreed on "a GPU", and each counts its own.
// Made by the executor for one batch and used by whoever drives the engine. Nothing here waits for
// a GPU: copies are on the host's stream, which has been put behind the tensors' events.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "runtime/device_seats.h"
#include "runtime/submission.h"

namespace mydist {

class GuestTensors {
 public:
  // `host` outlives this object.
  explicit GuestTensors(DeviceSeat* host) : host_(host) {}

  // From now on the submission is about the stand-in. Where it lies on the host already nothing
  // happens. Errors: those of the host's device.
  Status Bring(Submission* submission);
  // What the batch has left in stand-ins goes to the tensors.
  Status TakeHome();
  // Stand-ins stay until the host's last batch, of which this has been one, is over.
  void Leave();

 private:
  struct Way {
    void* there;  // On the tensor's GPU.
    const void* here;
    int64_t bytes;
  };
  // Of one submission.
  struct StandIn {
    std::vector<std::shared_ptr<uint8_t>> memory;
    std::vector<Way> ways_home;
  };

  Result<uint8_t*> CopyOf(const void* there, int64_t bytes, StandIn& stand_in) const;

  DeviceSeat* const host_;
  std::vector<std::shared_ptr<StandIn>> stand_ins_;
};

}  // namespace mydist
