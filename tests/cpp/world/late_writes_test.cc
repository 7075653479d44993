#include "world/late_writes.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

std::shared_ptr<uint8_t> Memory() {
  return {new uint8_t[8], [](const uint8_t* data) { delete[] data; }};
}

TEST(LateWrites, KeepWhatWasThereWhenTheyCameToBeExpected) {
  EXPECT_EQ(GuardFromLateWrites(nullptr), nullptr);
  std::shared_ptr<uint8_t> freed = Memory();
  const std::weak_ptr<uint8_t> freed_is_there = freed;
  freed = GuardFromLateWrites(std::move(freed));
  EXPECT_EQ(freed.get(), freed_is_there.lock().get());
  freed.reset();
  EXPECT_TRUE(freed_is_there.expired());

  std::shared_ptr<uint8_t> kept = Memory();
  const std::weak_ptr<uint8_t> kept_is_there = kept;
  kept = GuardFromLateWrites(std::move(kept));
  ExpectLateWrites();
  kept.reset();
  EXPECT_FALSE(kept_is_there.expired());

  std::shared_ptr<uint8_t> later = Memory();
  const std::weak_ptr<uint8_t> later_is_there = later;
  later = GuardFromLateWrites(std::move(later));
  later.reset();
  EXPECT_TRUE(later_is_there.expired()) << "nobody who failed before has known it";
}

}  // namespace
}  // namespace mydist
