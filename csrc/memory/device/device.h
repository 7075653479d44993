// Device: one GPU as algorithms and the engine see it: streams, events, memory, copies and kernels.
// Implemented by the CUDA plugin, and by a stand-in in host memory for tests. Owned by its opener,
// outlives everything it gave out. May be called from any thread; with its own device current and
// without changing what device the caller has. Nothing here waits for the device but Block and what
// says so. Errors: kInternal with the driver's words; after one the device is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "kernels/conversion.h"

namespace mydist {

// The driver's own handle (cudaStream_t), so that callers can name theirs; null: the default one.
// Work put on a stream is done in order; streams are ordered by events only.
struct StreamHandle {
  void* native = nullptr;

  bool operator==(const StreamHandle&) const = default;
};

// The point of a stream at which it was recorded. Goes back to its device when it is out of use.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};
using EventPointer = std::shared_ptr<const DeviceEvent>;

class Device {
 public:
  virtual ~Device() = default;

  virtual int index() const = 0;  // As the driver counts for this process.
  // What tells the GPU from all others of its host, in every process: its bus id.
  virtual std::string identity() const = 0;

  // `work` with this device current on this thread, as the driver understands it: for libraries
  // that take the current one. Returns what `work` returns. A device in host memory has nothing to
  // make current.
  virtual Status CallWithCurrent(const std::function<Status()>& work) { return work(); }

  // One of our own, which never waits for the default stream. Lives as long as the device.
  virtual Result<StreamHandle> CreateStream() = 0;

  // Whether work put on `stream` now goes into a graph instead of being done. On the default stream
  // also when such work would end the capture of another. A device without graphs has none.
  virtual Result<bool> IsCapturing(StreamHandle /*stream*/) { return false; }

  // Device memory. Its last owner makes sure that no stream uses it: the memory is freed without
  // waiting. Null when bytes is 0. Where memory is short, what others keep unused is given back
  // first, which may wait for the device.
  virtual Result<std::shared_ptr<uint8_t>> Allocate(int64_t bytes) = 0;
  // Memory of the host that copies reach without a detour (pinned), page by page of this process.
  virtual Result<std::shared_ptr<uint8_t>> AllocatePinned(int64_t bytes) = 0;

  // What is on `stream` now.
  virtual Result<EventPointer> Record(StreamHandle stream) = 0;
  // What is put on `stream` from now on begins after the event.
  virtual Status Wait(StreamHandle stream, const DeviceEvent& event) = 0;
  virtual Result<bool> IsOver(const DeviceEvent& event) = 0;
  // Keeps this thread until the event is over; gives up its core meanwhile.
  virtual Status Block(const DeviceEvent& event) = 0;

  // Between device memory and pinned memory, or within the device. The ranges do not overlap and
  // stay valid until the stream has passed.
  virtual Status Copy(void* target, const void* source, int64_t bytes, StreamHandle stream) = 0;
  // All segments in one launch; those of a list longer than a thousand may take several. A
  // segment's target is its source or overlaps no segment; in place only between types of one size.
  // `segments` is read before this returns.
  virtual Status Convert(std::span<const ConvertSegment> segments, const Conversion& conversion,
                         StreamHandle stream) = 0;
};

}  // namespace mydist
