// CurrentDevice: the device of this thread, as a driver has it: what libraries take that are not
// told. Their stand-ins in tests check that there is one.
#pragma once

#include <functional>
#include <utility>

#include "memory/device/device.h"

namespace mydist::testing {

class CurrentDevice {
 public:
  static const Device* Get() { return current_; }

  // `work` with `device` current; then the one that was.
  static Status Call(const Device* device, const std::function<Status()>& work) {
    const Restore restore{std::exchange(current_, device)};
    return work();
  }

 private:
  struct Restore {
    const Device* before;
    ~Restore() { current_ = before; }
  };
  static inline thread_local const Device* current_ = nullptr;
};

}  // namespace mydist::testing
