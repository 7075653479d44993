// Memory of a GPU that torch keeps without using it is given back when ours is short.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "memory/device/device_memory.h"
#include "torch/fake_cuda.h"

namespace mydist::testing {
namespace {

// By a thread of the engine, while this one has the GIL. How often torch was asked.
int TimesAsked(const std::function<void()>& on_empty_cache) {
  FakeCuda& cuda = FakeCuda::Instance();
  int count = 0;
  cuda.on_empty_cache = [&] {
    ++count;
    on_empty_cache();
  };
  std::thread([] { AskForMemory(0); }).join();
  cuda.on_empty_cache = nullptr;
  return count;
}

TEST(GpuMemory, IsGivenBackByTorchWhenOursIsShort) {
  EXPECT_EQ(TimesAsked([] {}), 1);
}

TEST(GpuMemory, MayBeShortWhereTorchFailsToGiveItBack) {
  EXPECT_EQ(TimesAsked([] { TORCH_CHECK(false, "the GPU is lost"); }), 1);
  EXPECT_EQ(TimesAsked([] { throw 1; }), 1);
}

}  // namespace
}  // namespace mydist::testing
