// PassingMemory: memory that a stream still uses and nobody else keeps; let go of when the stream
// has passed. Owned by whoever put the work there and used by the same thread; destroyed when the
// stream has passed.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "memory/device/device.h"

namespace mydist {

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

}  // namespace mydist
