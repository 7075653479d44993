// DeviceLink: what holds the ranks together whose collectives go on, on their devices, after the
// calls have returned (reduce): it notices what fails there, and ends it.
// Made by DevicePlugin::Connect, owned by the engine, outlives its collectives. Check and Abort:
// any thread at any time; Close: whoever drives the engine. The first failure is final: every later
// call, of the collectives too, returns it.
#pragma once

#include <memory>
#include <string>

#include "algorithms/collectives.h"
#include "base/clock.h"
#include "base/status.h"
#include "memory/device/device_memory.h"

namespace mydist {

class DeviceLink {
 public:
  virtual ~DeviceLink() = default;

  // Whether anything has failed since: also of work that is on a stream already. Never waits.
  virtual Status Check() = 0;

  // Ends what is under way here, on the streams too, and makes all calls, present and future,
  // return `why`, not OK. Only the first failure counts. Blocks until the device has been let go
  // of, but not on other ranks: they abort as well, or they wait in vain. Links with work on one
  // stream have to be aborted at the same time: that of one may lie behind that of another.
  virtual void Abort(const Status& why) = 0;

  // Waits for what is on the streams and for the other ranks, which close as well, and ends the
  // link. Later calls return kAborted. kTimeout after `deadline`, and what `watch` says, which is
  // asked meanwhile; after a failure the link still has to be aborted.
  virtual Status Close(TimePoint deadline, const WaitWatch& watch) = 0;
};

// Ranks that are to be linked, each on one device.
struct DevicePeers {
  StreamSeat seat;  // Where this rank's work goes.
  int rank = 0;     // Of this rank among them.
  int size = 1;
  std::string name;  // For messages, e.g. "process set 2".
  // Spans the same ranks on host memory, where they tell each other what a link needs. Not null;
  // outlives the link.
  Collectives* exchange = nullptr;
};

struct DeviceConnection {
  std::shared_ptr<DeviceLink> link;
  std::unique_ptr<Collectives> collectives;  // On the seat's stream, over the link.
};

}  // namespace mydist
