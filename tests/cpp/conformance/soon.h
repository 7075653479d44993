// EndsSoon: how soon an error comes, in tests, as in tests/soon.py. A machine that runs tests may
// be busy; docs/reliability.md has the bounds of the product.
#pragma once

#include <gtest/gtest.h>

#include "base/clock.h"

namespace mydist {

// What runs while one lives takes no longer than three seconds.
class EndsSoon {
 public:
  EndsSoon() = default;
  EndsSoon(const EndsSoon&) = delete;
  EndsSoon& operator=(const EndsSoon&) = delete;
  ~EndsSoon() { EXPECT_LT(ToSeconds(Now() - began_), 3.0); }

 private:
  TimePoint began_ = Now();
};

}  // namespace mydist
