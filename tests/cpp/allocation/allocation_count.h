// AllocationCount: how often this thread has asked operator new for memory. The test program
// replaces operator new, so these tests are a program of their own.
#pragma once

#include <cstdint>

namespace mydist {

// Since the thread began.
int64_t AllocationCount();

}  // namespace mydist
