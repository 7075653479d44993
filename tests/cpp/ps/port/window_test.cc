// Shared memory: what is made, and what a server takes.
#include "ps/port/window.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ps/port/greeting.h"

namespace mydist::ps {
namespace {

constexpr uint64_t kBytes = 1 << 20;

// A file of the worker's own making.
Descriptor MemoryFile(uint64_t bytes, int seals) {
  Descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.number(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(file.number(), F_ADD_SEALS, seals), 0);
  return file;
}

TEST(Window, IsSeenByBothSides) {
  Descriptor file;
  const auto made = Window::Make(kBytes, file);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const auto mapped = Window::Map(file, kBytes);
  ASSERT_TRUE(mapped.ok()) << mapped.status().ToString();
  (*made)->memory()[kBytes - 1] = 5;
  EXPECT_EQ((*mapped)->memory()[kBytes - 1], 5);
  (*mapped)->memory()[0] = 6;
  EXPECT_EQ((*made)->memory()[0], 6);
}

TEST(Window, HasItsPagesAndItsSizeForEver) {
  Descriptor file;
  ASSERT_TRUE(Window::Make(kBytes, file).ok());
  struct stat info {};
  ASSERT_EQ(fstat(file.number(), &info), 0);
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, kBytes);
  EXPECT_NE(ftruncate(file.number(), 0), 0);
  EXPECT_NE(ftruncate(file.number(), 2 * kBytes), 0);
}

TEST(Window, RefusesAFileThatCouldBecomeShorter) {
  const auto mapped = Window::Map(MemoryFile(kBytes, F_SEAL_GROW), kBytes);
  EXPECT_EQ(mapped.status().code(), StatusCode::kInternal);
  EXPECT_THAT(mapped.status().message(), ::testing::HasSubstr("could become shorter"));
}

TEST(Window, RefusesAFileOfAnotherSize) {
  const auto mapped = Window::Map(MemoryFile(kBytes / 2, F_SEAL_GROW | F_SEAL_SHRINK), kBytes);
  EXPECT_EQ(mapped.status().code(), StatusCode::kInternal);
  EXPECT_THAT(mapped.status().message(),
              ::testing::HasSubstr("has 524288 bytes, expected 1048576"));
}

TEST(Window, RefusesWhatIsNoMemory) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Descriptor one(ends[0]);
  const Descriptor other(ends[1]);
  EXPECT_EQ(Window::Map(one, kBytes).status().code(), StatusCode::kInternal);
}

TEST(Window, RefusesSizesThatAreNoneOrTooLarge) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4097}, kMaxWindowBytes + 4096}) {
    Descriptor file;
    EXPECT_EQ(Window::Make(bytes, file).status().code(), StatusCode::kInternal) << bytes;
    EXPECT_FALSE(file.is_open()) << bytes;
  }
}

}  // namespace
}  // namespace mydist::ps
