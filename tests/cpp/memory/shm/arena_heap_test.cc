// The heap in shared memory: seen by all ranks, reserved before it is touched, given back.
#include "memory/shm/arena_heap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "algorithms/shm/shm_collectives.h"
#include "algorithms/shm/shm_ranks.h"
#include "conformance/every_collective_suite.h"
#include "conformance/sanitizers.h"

namespace mydist::shm {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMegabyte = int64_t{1} << 20;

int64_t FreeBytes() {
  struct statvfs info {};
  EXPECT_EQ(statvfs("/dev/shm", &info), 0);
  return static_cast<int64_t>(info.f_bfree * info.f_frsize);
}

// What the files without a name take that this process has open there. That of the whole file
// system also changes with what others do.
int64_t HeldBytes() {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code is_gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), is_gone).string();
    struct stat info {};
    if (!target.starts_with("/dev/shm/") || stat(entry.path().c_str(), &info) != 0) continue;
    bytes += int64_t{info.st_blocks} * 512;
  }
  return bytes;
}

TEST(ArenaHeap, MemoryIsAlignedAndOnlyOwnMemoryHasAnOffset) {
  OnThreadsWithPort(1, kSmallSlot, [](ShmPort& port, int) {
    ArenaHeap& heap = *port.heap();
    const auto small = AllocateOrFail(heap, 1);
    const auto page = AllocateOrFail(heap, 4096);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(small.get()) % 128, 0U);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(page.get()) % 4096, 0U);
    EXPECT_EQ(heap.OffsetOf(small.get(), 1), 0);
    EXPECT_EQ(heap.OffsetOf(page.get() + 8, 8), 4096 + 8);
    EXPECT_EQ(heap.OffsetOf(small.get(), heap.zone_bytes()), 0);
    EXPECT_EQ(heap.OffsetOf(small.get(), heap.zone_bytes() + 1), std::nullopt);
    const int on_stack = 0;
    EXPECT_EQ(heap.OffsetOf(&on_stack, 4), std::nullopt);
    EXPECT_EQ(heap.At(0, -1, 1), nullptr);
    EXPECT_EQ(heap.At(0, heap.zone_bytes() - 1, 2), nullptr);
    EXPECT_EQ(heap.At(0, heap.zone_bytes() - 1, 1), small.get() + heap.zone_bytes() - 1);
  });
}

TEST(ArenaHeap, FreedPagesGoBackToTheFileSystem) {
  OnThreadsWithPort(1, kSmallSlot, [](ShmPort& port, int) {
    const auto kept = AllocateOrFail(*port.heap(), 100);
    std::memset(kept.get(), 1, 100);
    const int64_t before = HeldBytes();
    EXPECT_GT(before, 0);
    auto memory = AllocateOrFail(*port.heap(), 16 * kMegabyte);
    EXPECT_EQ(HeldBytes(), before + 16 * kMegabyte);
    memory.reset();
    EXPECT_EQ(HeldBytes(), before);
    memory = AllocateOrFail(*port.heap(), 8192);
    EXPECT_EQ(memory.get()[5], 0) << "a fresh page";
    EXPECT_EQ(kept.get()[99], 1) << "shared no page with it";
  });
}

TEST(ArenaHeap, AZoneThatIsFullIsAnError) {
  OnThreadsWithPort(1, kSmallSlot, [](ShmPort& port, int) {
    for (const int64_t bytes : {port.heap()->zone_bytes() + 1, int64_t{1} << 62}) {
      const auto refused = port.heap()->Allocate(bytes);
      ExpectError(refused.status(), StatusCode::kInternal, {std::to_string(bytes) + " "});
    }
    EXPECT_NE(AllocateOrFail(*port.heap(), port.heap()->zone_bytes() / 2), nullptr);
  });
}

TEST(ArenaHeap, IsThreadSafe) {
  OnThreadsWithPort(1, kSmallSlot, [](ShmPort& port, int) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&heap = *port.heap(), thread] {
        for (int round = 0; round < 100; ++round) {
          const int64_t bytes = 1 + (round * 7919 + thread * 104729) % 50000;
          const auto memory = AllocateOrFail(heap, bytes);
          std::memset(memory.get(), thread, static_cast<size_t>(bytes));
          for (int64_t i = 0; i < bytes; i += 97) ASSERT_EQ(memory.get()[i], thread);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto all = AllocateOrFail(*port.heap(), port.heap()->zone_bytes());
    EXPECT_EQ(port.heap()->OffsetOf(all.get(), 1), 0) << "everything came back";
  });
}

// Signals every millisecond, as a profiler's are, until the object is gone or there were too many.
class SignalRain {
 public:
  static constexpr int kMostDrops = 1000;

  SignalRain() {
    drops_ = 0;
    struct sigaction action {};
    action.sa_handler = [](int) {
      if (++drops_ >= kMostDrops) SetTimer(0);
    };
    action.sa_flags = SA_RESTART;
    EXPECT_EQ(sigaction(SIGALRM, &action, &before_), 0);
    SetTimer(1000);
  }
  ~SignalRain() {
    SetTimer(0);
    sigaction(SIGALRM, &before_, nullptr);
  }
  SignalRain(const SignalRain&) = delete;
  SignalRain& operator=(const SignalRain&) = delete;

  bool HasEndedItself() const { return drops_ >= kMostDrops; }

 private:
  static void SetTimer(suseconds_t interval_us) {
    const itimerval timer{{0, interval_us}, {0, interval_us}};
    setitimer(ITIMER_REAL, &timer, nullptr);
  }

  static inline std::atomic<int> drops_;
  struct sigaction before_ {};
};

// What the kernel says of the mapping that `address` is in.
std::string MappingFlags(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool is_it = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      is_it = begin <= wanted && wanted < end;
    }
    if (is_it && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

// A dump would fetch every page of every zone, terabytes that do not exist, from the file system.
TEST(ArenaHeap, IsLeftOutOfCoreDumps) {
  OnThreadsWithPort(1, kSmallSlot, [](ShmPort& port, int) {
    EXPECT_THAT(MappingFlags(port.heap()->At(0, 0, 1)), HasSubstr(" dd "));
  });
}

// Older kernels give up what they have reserved so far when a signal comes, so that trying
// again would never end.
TEST(ArenaHeap, SignalsDoNotKeepItFromReserving) {
  constexpr int64_t kBytes = 512 * kMegabyte;
  if (FreeBytes() < 2 * kBytes) GTEST_SKIP() << "needs 1 GiB of shared memory";
  const ShmDirectory directory;
  ArenaOptions options = OptionsOf(0, 1, directory);
  options.zone_bytes = kBytes;
  const auto port = OpenPort(options, [](const Bytes& mine) { return std::vector<Bytes>{mine}; });
  ASSERT_NE(port, nullptr);
  const SignalRain rain;
  EXPECT_NE(AllocateOrFail(*port->heap(), kBytes), nullptr);
  EXPECT_FALSE(rain.HasEndedItself());
}

// One rank has no address space left for the zones: then nobody has a heap, and all goes on.
TEST(ArenaHeap, WithoutAddressSpaceNobodyHasIt) {
  if (kIsSanitized) GTEST_SKIP() << "sanitizers need terabytes of address space themselves";
  const ShmDirectory directory;
  ForkedRanks ranks(2, [&](const ForkedRanks::Seat& seat) {
    ArenaOptions options = OptionsOf(seat.rank, 2, directory);
    options.zone_bytes = int64_t{1} << 33;
    if (seat.rank == 1) {
      const struct rlimit limit { int64_t{1} << 33, int64_t{1} << 33 };
      EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    }
    const auto port = OpenPort(options, seat.exchange);
    ASSERT_NE(port, nullptr);
    EXPECT_EQ(port->heap(), nullptr);
    EXPECT_THAT(port->Description(), HasSubstr("rank 1: cannot map 17179869184 bytes"));
    ShmCollectives collectives(port.get(), {0, 1});
    testing::CheckReducingCollectives({seat.rank, 2, &collectives}, DataType::kFloat32);
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

}  // namespace
}  // namespace mydist::shm
