// FakeDevice: a Device in host memory that finds mistakes in the order of things, for tests.
// Each stream is a thread. Every copy, kernel and access of the host is noted with the bytes it
// reads and writes and with what it is ordered behind; two uses of a byte, one of them a write,
// without an order between them are a violation, whether or not they happen to collide. So are
// freed, foreign or overrun memory and whatever else Device forbids. What violates is not done: the
// call returns kInternal with the names of both, and as on a real one the device is lost then. A
// violation that nobody has taken fails the test when the device is destroyed, and so does memory
// that nobody has freed. The host's accesses have to be told: see HostReads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "fakes/access_order.h"
#include "fakes/fake_memory.h"
#include "fakes/fake_stream.h"
#include "gpu/current_device.h"
#include "memory/device/device.h"

namespace mydist::testing {

// Anything done on a stream: `work` runs on its thread, may take its time and may wait for others.
struct Operation {
  std::string name;
  std::vector<MemoryRange> reads;
  std::vector<MemoryRange> writes;
  std::function<void()> work;
};

// What the devices of a process have in common: the host, and whose memory is whose. The host's
// threads are one actor: locks of the program under test order what they do.
struct FakeProcess {
  static constexpr int kHostActor = 0;

  Mutex mutex;
  FakeMemory memory MYDIST_GUARDED_BY(mutex);
  int actor_count MYDIST_GUARDED_BY(mutex) = kHostActor + 1;
  VectorClock host_clock MYDIST_GUARDED_BY(mutex);
};

struct FakeDeviceOptions {
  int index = 0;
  std::string identity = "0000:01:00.0";
  Pace pace = Pace::kRandom;
  uint64_t seed = 1;
  std::shared_ptr<FakeProcess> process{};  // Default: one of its own.
};

// How often something was asked for, since the device was made.
struct DeviceCounts {
  int64_t streams = 0;
  int64_t allocations = 0;
  int64_t pinned_allocations = 0;
  int64_t blocks = 0;      // Of the host.
  int64_t copies = 0;      // Of more than nothing.
  int64_t launches = 0;    // Of the kernel that converts, with something to do.
  int64_t operations = 0;  // By Enqueue.
  // The most copies at a time that were under way as far as the host knew.
  int64_t most_copies_in_flight = 0;
  int64_t most_fetches_in_flight = 0;  // Of those, to pinned memory.
};

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(const FakeDeviceOptions& options = {});
  ~FakeDevice() override;  // Does what is queued first.
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  int index() const override { return options_.index; }
  std::string identity() const override { return options_.identity; }
  Status CallWithCurrent(const std::function<Status()>& work) override {
    return CurrentDevice::Call(this, work);
  }
  Result<StreamHandle> CreateStream() override;
  Result<bool> IsCapturing(StreamHandle stream) override;
  Result<std::shared_ptr<uint8_t>> Allocate(int64_t bytes) override;
  Result<std::shared_ptr<uint8_t>> AllocatePinned(int64_t bytes) override;
  Result<EventPointer> Record(StreamHandle stream) override;
  Status Wait(StreamHandle stream, const DeviceEvent& event) override;
  Result<bool> IsOver(const DeviceEvent& event) override;
  Status Block(const DeviceEvent& event) override;
  Status Copy(void* target, const void* source, int64_t bytes, StreamHandle stream) override;
  Status Convert(std::span<const ConvertSegment> segments, const Conversion& conversion,
                 StreamHandle stream) override;

  Status Enqueue(StreamHandle stream, Operation operation);

  // This thread is about to read or write pinned memory, called `what`. Nothing of it may be done
  // where this fails.
  Status HostReads(const void* begin, int64_t bytes, std::string_view what);
  Status HostWrites(const void* begin, int64_t bytes, std::string_view what);

  // Until it ends, whatever is put on the stream is a violation: a graph would hold it.
  void BeginCapture(StreamHandle stream);
  void EndCapture();

  // What went wrong first; empty when nothing has. Taken, it does not fail the test any more.
  std::string TakeViolation();
  // As a driver's error would: from now on nothing works. No violation.
  void Lose(const std::string& why);
  DeviceCounts counts();

 private:
  class Event;
  // To the device, from memory that may outlive it.
  struct Link {
    Mutex mutex;
    FakeDevice* device MYDIST_GUARDED_BY(mutex) = nullptr;
  };
  // One use of memory by an operation.
  struct Touch {
    std::shared_ptr<FakeAllocation> allocation;
    int64_t begin;
    int64_t end;
    Use use;
  };

  Status Violate(const std::string& what) MYDIST_REQUIRES(state_.mutex);
  Status CheckAlive() const MYDIST_REQUIRES(state_.mutex);
  Result<FakeStream*> StreamOf(StreamHandle handle) MYDIST_REQUIRES(state_.mutex);
  Result<std::shared_ptr<const StreamPoint>> PointOf(const DeviceEvent& event)
      MYDIST_REQUIRES(state_.mutex);
  FakeStream* AddStream() MYDIST_REQUIRES(state_.mutex);
  void WakeStreams() MYDIST_REQUIRES(state_.mutex);

  VectorClock& ClockOfHost() MYDIST_REQUIRES(state_.mutex) { return process_->host_clock; }
  // Another thing that the host does.
  Access HostAccess(const std::string& what) MYDIST_REQUIRES(state_.mutex);

  Result<std::vector<Touch>> TouchesOf(const Operation& operation) MYDIST_REQUIRES(state_.mutex);
  Status Order(const std::vector<Touch>& touches, const Access& access, const VectorClock& clock)
      MYDIST_REQUIRES(state_.mutex);
  Status Put(FakeStream& stream, Operation operation) MYDIST_REQUIRES(state_.mutex);
  Status HostUses(const MemoryRange& range, Use use, std::string_view what);
  Status CheckCopy(const Operation& copy) MYDIST_REQUIRES(state_.mutex);
  void CountInFlight(FakeStream& stream, std::vector<Access>& in_flight, int64_t& most)
      MYDIST_REQUIRES(state_.mutex);

  Result<std::shared_ptr<uint8_t>> Give(MemoryKind kind, int64_t bytes);
  void TakeBack(const std::shared_ptr<FakeAllocation>& allocation);

  const FakeDeviceOptions options_;
  const std::shared_ptr<Link> link_;
  const std::shared_ptr<FakeProcess> process_;
  StreamState state_;
  std::vector<std::unique_ptr<FakeStream>> streams_
      MYDIST_GUARDED_BY(state_.mutex);  // [0] is null.
  FakeMemory& memory_ MYDIST_GUARDED_BY(state_.mutex);
  int64_t operation_count_ MYDIST_GUARDED_BY(state_.mutex) = 0;
  std::vector<Access> copies_in_flight_ MYDIST_GUARDED_BY(state_.mutex);
  std::vector<Access> fetches_in_flight_ MYDIST_GUARDED_BY(state_.mutex);
  std::optional<StreamHandle> captured_ MYDIST_GUARDED_BY(state_.mutex);
  std::string loss_ MYDIST_GUARDED_BY(state_.mutex);
  std::string violation_ MYDIST_GUARDED_BY(state_.mutex);
  DeviceCounts counts_ MYDIST_GUARDED_BY(state_.mutex);
};

}  // namespace mydist::testing
