// MemoryShortage: who is asked when memory is short, by whom, and who is not.
#include "memory/device/device_memory.h"

#include <gmock/gmock.h>

#include <vector>

namespace mydist {
namespace {

using ::testing::ElementsAre;

class MemoryShortage : public ::testing::Test {
 protected:
  void SetUp() override { asked_.clear(); }
  void TearDown() override { OnMemoryShortage(nullptr); }

  static inline std::vector<int> asked_;
};

TEST_F(MemoryShortage, WhoeverHasSomethingIsToldOfWhichGpu) {
  AskForMemory(1);
  OnMemoryShortage([](int device) noexcept { asked_.push_back(device); });
  AskForMemory(2);
  AskForMemory(3);
  OnMemoryShortage(nullptr);
  AskForMemory(4);
  EXPECT_THAT(asked_, ElementsAre(2, 3));
}

TEST_F(MemoryShortage, WhoeverIsAskedDoesNotAskHimself) {
  OnMemoryShortage([](int device) noexcept {
    asked_.push_back(device);
    AskForMemory(device + 10);
  });
  AskForMemory(1);
  AskForMemory(2);
  EXPECT_THAT(asked_, ElementsAre(1, 2));
}

}  // namespace
}  // namespace mydist
