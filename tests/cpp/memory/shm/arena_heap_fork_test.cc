// A forked child and the heap: it has its parent's values as of the fork, in memory of its own.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <span>
#include <string>

#include "algorithms/shm/shm_ranks.h"
#include "conformance/sanitizers.h"
#include "memory/shm/arena_heap.h"

namespace mydist::shm {
namespace {

constexpr int64_t kLarge = 3 * kPageBytes + 100;

bool AllAre(std::span<const uint8_t> memory, int value) {
  return std::all_of(memory.begin(), memory.end(), [&](uint8_t byte) { return byte == value; });
}

// A forked child that looks at what it has when it is told to; `look` says whether all is well.
class Child {
 public:
  explicit Child(const std::function<bool()>& look) {
    EXPECT_EQ(pipe(ends_.data()), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    char told = 0;
    const bool is_well = read(ends_[0], &told, 1) == 1 && look();
    _exit(is_well ? 0 : 1);
  }
  ~Child() {
    for (const int end : ends_) close(end);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool Look() {
    EXPECT_EQ(write(ends_[1], "l", 1), 1);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  std::array<int, 2> ends_{};
  pid_t pid_ = -1;
};

class ArenaHeapFork : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kIsSanitized) GTEST_SKIP() << "its allocator may be locked in a child";
  }
};

TEST_F(ArenaHeapFork, TheChildReadsTheValuesAsOfTheFork) {
  OnThreadsWithPort(2, kSmallSlot, [](ShmPort& port, int rank) {
    if (rank != 0) return;
    // Two share a page; one goes over several and ends within one.
    const auto first = AllocateOrFail(*port.heap(), 200);
    const auto second = AllocateOrFail(*port.heap(), 300);
    const auto large = AllocateOrFail(*port.heap(), kLarge);
    std::fill_n(first.get(), 200, uint8_t{1});
    std::fill_n(second.get(), 300, uint8_t{2});
    std::fill_n(large.get(), kLarge, uint8_t{3});
    Child child([&] {
      return AllAre({first.get(), 200}, 1) && AllAre({second.get(), 300}, 2) &&
             AllAre({large.get(), static_cast<size_t>(kLarge)}, 3);
    });
    std::fill_n(first.get(), 200, uint8_t{4});
    std::fill_n(second.get(), 300, uint8_t{4});
    std::fill_n(large.get(), kLarge, uint8_t{4});
    EXPECT_TRUE(child.Look());
  });
}

TEST_F(ArenaHeapFork, TheChildsWritesAreItsOwn) {
  OnThreadsWithPort(1, kSmallSlot, [](ShmPort& port, int) {
    auto memory = AllocateOrFail(*port.heap(), kLarge);
    std::fill_n(memory.get(), kLarge, uint8_t{1});
    Child child([&] {
      std::fill_n(memory.get(), kLarge, uint8_t{9});
      // A child of the child, and what becomes of the memory at its end.
      Child grandchild([&] { return AllAre({memory.get(), static_cast<size_t>(kLarge)}, 9); });
      const bool is_well = grandchild.Look();
      memory.reset();
      return is_well;
    });
    EXPECT_TRUE(child.Look());
    EXPECT_TRUE(AllAre({memory.get(), static_cast<size_t>(kLarge)}, 1));
    const auto more = AllocateOrFail(*port.heap(), kLarge);
    EXPECT_TRUE(AllAre({memory.get(), static_cast<size_t>(kLarge)}, 1));
  });
}

TEST_F(ArenaHeapFork, WhatIsNotForTheChildIsOutOfItsReach) {
  OnThreadsWithPort(2, kSmallSlot, [](ShmPort& port, int rank) {
    if (rank != 0) return;
    const auto scratch = AllocateOrFail(*port.heap(), kLarge, ArenaHeap::InForkedChild::kNothing);
    const auto kept = AllocateOrFail(*port.heap(), kLarge);
    const uint8_t* const peers = port.heap()->At(1, 0, 1);
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe(ends.data()), 0);
    Child child([&] {
      // The kernel says what would be a signal otherwise.
      return write(ends[1], kept.get(), 1) == 1 && write(ends[1], scratch.get(), 1) == -1 &&
             write(ends[1], peers, 1) == -1;
    });
    EXPECT_TRUE(child.Look());
    for (const int end : ends) close(end);
  });
}

// So many mappings that the kernel makes no more, until it goes.
class ManyMappings {
 public:
  ManyMappings() {
    std::ifstream("/proc/sys/vm/max_map_count") >> most_;
    bytes_ = 2 * most_ * static_cast<size_t>(kPageBytes);
    memory_ = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    // Every other page is another mapping.
    auto* page = static_cast<uint8_t*>(memory_);
    while (mprotect(page, kPageBytes, PROT_READ) == 0) page += 2 * kPageBytes;
  }
  ~ManyMappings() { munmap(memory_, bytes_); }
  ManyMappings(const ManyMappings&) = delete;
  ManyMappings& operator=(const ManyMappings&) = delete;

 private:
  size_t most_ = 0;
  size_t bytes_ = 0;
  void* memory_ = nullptr;
};

// What a child without room for memory of its own says as it ends; its exit code comes first.
std::string EndOfChildWithoutRoom() {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const int stderr_before = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  int status = 0;
  {
    const ManyMappings no_more;
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    waitpid(pid, &status, 0);
  }
  dup2(stderr_before, STDERR_FILENO);
  close(stderr_before);
  close(ends[1]);
  std::array<char, 1000> text{};
  const ssize_t length = read(ends[0], text.data(), text.size());
  close(ends[0]);
  return std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status)) + " " +
         std::string(text.data(), static_cast<size_t>(std::max<ssize_t>(length, 0)));
}

TEST_F(ArenaHeapFork, AChildThatCannotHaveMemoryOfItsOwnEnds) {
  OnThreadsWithPort(1, kSmallSlot, [](ShmPort& port, int) {
    const auto before = AllocateOrFail(*port.heap(), kLarge, ArenaHeap::InForkedChild::kNothing);
    const auto memory = AllocateOrFail(*port.heap(), kLarge);
    const std::string end = EndOfChildWithoutRoom();
    EXPECT_TRUE(end.starts_with("1 mydist: a forked child cannot map its own copy")) << end;
    // With room again there is a child again.
    Child child([] { return true; });
    EXPECT_TRUE(child.Look());
  });
}

}  // namespace
}  // namespace mydist::shm
