// DeviceMemory: memory of a GPU for what one stream needs on the way, and packing into it (fuse).
// Grows, never shrinks. Used on that stream only, so that its next use comes behind the last. Owned
// by the thread that puts the work there and used by it; destroyed when the stream has passed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "base/export.h"
#include "base/status.h"
#include "memory/device/device.h"
#include "memory/fusion_buffer.h"

namespace mydist {

// What a Collectives on device memory is made with, besides its peers.

// WaitWatched: how the host waits for a device whose work may itself wait for other ranks: a peer
// that is lost must not keep it for ever. Called by the thread that drives the engine.

// Whether waiting still makes sense: OK, or what has happened meanwhile, such as the loss of a
// peer. Never waits. Null: nothing can happen.
using WaitWatch = std::function<Status()>;

// Keeps this thread until the event is over or `watch` says why not, which is then returned; asks
// it some ten thousand times a second and gives up its core in between. Errors: those of the
// device.
MYDIST_EXPORT Status WaitWatched(Device& device, const DeviceEvent& event, const WaitWatch& watch);

// Calls put their work on `stream`, behind what is there, and may return before it is done; what
// follows on the stream finds the result. Memory stays valid, and unchanged by others, until the
// stream has passed.
struct StreamSeat {
  Device* device = nullptr;  // Not null; outlives this.
  StreamHandle stream;
  WaitWatch watch{};  // Asked while the host waits for the stream.
};

// PassingMemory: memory that only a stream still uses; let go of when the stream
// has passed. Owned and used by the thread that put the work there; destroyed when the stream has
// passed.
class PassingMemory {
 public:
  // `last_use`: recorded on one stream, call by call.
  void Keep(std::shared_ptr<void> memory, EventPointer last_use) {
    kept_.push_back({std::move(memory), std::move(last_use)});
  }

  // Lets go of what is not used any more. Never waits. Errors: those of Device.
  Status FreePassed(Device& device) {
    while (!kept_.empty()) {
      MYDIST_ASSIGN_OR_RETURN(const bool is_over, device.IsOver(*kept_.front().last_use));
      if (!is_over) break;
      kept_.pop_front();
    }
    return Status::Ok();
  }

 private:
  struct Kept {
    std::shared_ptr<void> memory;
    EventPointer last_use;
  };

  std::deque<Kept> kept_;
};

class MYDIST_EXPORT DeviceMemory final : public BatchMemory {
 public:
  explicit DeviceMemory(const StreamSeat& seat) : seat_(seat) {}

  // At least `bytes` for work that is put on the stream before the next call; arbitrary content.
  // Waits for nothing but what Device::Allocate may wait for. Errors: those of Device.
  Result<uint8_t*> Reserve(int64_t bytes) override;
  Status Convert(std::span<const ConvertSegment> segments, const Conversion& conversion) override {
    return segments.empty() ? Status::Ok()
                            : seat_.device->Convert(segments, conversion, seat_.stream);
  }
  int64_t capacity_bytes() const override { return capacity_bytes_; }

 private:
  StreamSeat seat_;
  std::shared_ptr<uint8_t> memory_;
  int64_t capacity_bytes_ = 0;
  PassingMemory outgrown_;  // Too small by now, but the stream may not be through with it.
};

// MemoryShortage: what others in the process give back when a GPU has no memory left. Torch keeps
// what its tensors do not use any more, of which the driver knows nothing. One function for the
// process, set by the torch binding as long as that is there; devices ask for it when an allocation
// has failed. Any thread; without a lock, as it may wait for the GPU and a fork may come in
// between.

// Called with the index of the GPU, which is current. The caller does not hold the GIL.
using GiveBackMemory = void (*)(int device) noexcept;

// Null: AskForMemory does nothing. A call that runs may go on after another function is set.
MYDIST_EXPORT void OnMemoryShortage(GiveBackMemory give_back);

// Does nothing when it is called from inside such a function.
MYDIST_EXPORT void AskForMemory(int device);

}  // namespace mydist
