// TimelineRelay: carries recorded events to the one timeline file: rank 0 writes, the others send.
// Owned by the engine, called by whoever drives it; never blocks on the disk or the network. A
// timeline that cannot be written is one warning, training goes on.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "controller/coordinator.h"
#include "timeline/clock_offset.h"
#include "timeline/timeline.h"
#include "timeline/trace_writer.h"
#include "world/topology.h"

namespace mydist {

class TimelineRelay {
 public:
  // All outlive the relay.
  TimelineRelay(const Topology* topology, Timeline* timeline, Coordinator* coordinator);

  // Rank 0: opens the file. False, with a warning in the log, when that fails.
  bool Open(const std::string& path);

  void Start(bool mark_cycles);
  // Carries off what is left and, on rank 0, waits for the disk: whoever stops a timeline wants to
  // read it. The file stays open for blocks still on their way.
  void Stop();

  // When Flush should be called next; kNever when there is nothing to carry off.
  TimePoint NextFlush();
  // Carries off events when they are due, and writes what peers have sent.
  void Flush(TimePoint now);
  // This rank records nothing more: carries everything off and marks the end for rank 0.
  void Finish();
  // Rank 0: whether the end of every other rank has arrived, or there is nothing to wait for.
  bool AllFinished() const;
  // Rank 0: completes the file.
  void Close();

 private:
  void CarryOff();
  void WriteIncoming();

  const Topology& topology_;
  Timeline& timeline_;
  Coordinator& coordinator_;
  std::unique_ptr<TraceWriter> writer_;  // Rank 0 while a file is open.
  std::vector<ClockOffset> offsets_;     // Rank 0, by rank.
  int finished_count_ = 0;
};

}  // namespace mydist
