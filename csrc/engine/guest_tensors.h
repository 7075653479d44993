// GuestTensors: the tensors of a batch that lie on another GPU of this process than the one with
// which it takes part in the process set: each has a stand-in on that one (its host) for the time
// of the batch. Ranks need not know: they have agreed on "a GPU", and each counts its own.
// Made by the executor for one batch and used by whoever drives the engine. Nothing here waits for
// a GPU: copies are on the host's stream, which has been put behind the tensors' events.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/submission.h"
#include "planner/device_links.h"

namespace mydist {

class GuestTensors {
 public:
  // `host` outlives this object.
  explicit GuestTensors(DeviceSeat* host) : host_(host) {}

  // Once: from now on those of the batch that lie elsewhere are about their stand-ins, all of which
  // share one piece of the host's memory, but outputs whose size is not known yet. Errors: those of
  // the host's device.
  Status Bring(std::span<Submission* const> batch);
  // What the batch has left in stand-ins goes to the tensors.
  Status TakeHome();
  // Stand-ins stay until the host's last batch, of which this has been one, is over.
  void Leave();

 private:
  struct Way {
    PlaceOnDevice there;  // On the tensor's GPU.
    const void* here;
    int64_t bytes;
  };
  // What is known late, and by what a submission allocates: it may outlive this object.
  struct Late {
    std::vector<std::shared_ptr<uint8_t>> memory;
    std::vector<Way> ways_home;
  };

  bool IsGuest(const Submission& submission) const;
  Status BringOne(Submission* submission, uint8_t** room);
  Status CopyHere(void* here, ConstPlaceOnDevice there, int64_t bytes) const;

  DeviceSeat* const host_;
  std::vector<Way> ways_home_;
  std::shared_ptr<Late> late_;  // Null: nothing is known late.
};

}  // namespace mydist
