// Tensors that are reduced where they lie: anywhere, with and without the kernel's help, and what
// happens when a rank is stopped or the file system is small.
#include "algorithms/shm/direct_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>

#include "algorithms/shm/refused_calls.h"
#include "algorithms/shm/rewrites_suite.h"
#include "algorithms/shm/shm_ranks.h"
#include "conformance/deep.h"

namespace mydist::shm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Whoever is still at it may write to the tensors of one that has given up.
TEST(DirectCollectives, DoNotGiveTensorsBackWhileAPeerIsAtThem) {
  constexpr int64_t kCount = 64 << 10;
  std::promise<void> is_working;
  constexpr std::chrono::milliseconds kLong{500};
  std::atomic<bool> has_returned{false};
  OnThreadsWithPort(3, kSmallSlot, [&](ShmPort& port, int rank) {
    const std::array<std::vector<int>, 3> peers{{{1, 2}, {0, 2}, {0, 1}}};
    const auto memory = port.heap()->Allocate(kCount * int64_t{sizeof(float)});
    ASSERT_TRUE(memory.ok());
    const Place place = port.peer_memory().PlaceOf(memory->get(), kCount * int64_t{sizeof(float)});
    const PlaceMessage message{place, place};
    if (rank == 0) {
      ShmCollectives collectives(&port, AllOf(3));
      const Status status = collectives.Allreduce(memory->get(), kCount, {DataType::kFloat32});
      has_returned.store(true);
      EXPECT_EQ(status.code(), StatusCode::kPeerLost);
      return;
    }
    ASSERT_TRUE(
        port.steps().Publish(peers[static_cast<size_t>(rank)], &message, sizeof message).ok());
    if (rank == 1) {
      // Gone, once the other one is in the middle of it.
      is_working.get_future().wait();
      port.Leave("");
      return;
    }
    is_working.set_value();
    const RankLine& other = port.arena().rank_line(0);
    while (other.presence.load() != Presence::kLeft && !has_returned.load()) sched_yield();
    std::this_thread::sleep_for(kLong);
    EXPECT_FALSE(has_returned.load());
    port.Leave("");
  });
  EXPECT_TRUE(has_returned.load());
}

struct Refusal {
  std::vector<uint32_t> calls;  // Of rank 1.
  const char* named;
};

TEST(CrossMemory, RefusedByOneIsUsedByNobody) {
  constexpr int kSize = 3;
  for (const Refusal& refusal :
       {Refusal{{SYS_process_vm_readv}, "process_vm_readv"},
        Refusal{{SYS_process_vm_writev}, "process_vm_writev"},
        Refusal{{SYS_process_vm_readv, SYS_process_vm_writev}, "process_vm_readv"}}) {
    OnProcesses(kSize, [&](const ForkedRanks::Seat& seat, const ShmDirectory& directory) {
      for (const uint32_t call : refusal.calls) {
        if (seat.rank == 1) Refuse(call, EPERM);
      }
      ArenaOptions options = OptionsOf(seat.rank, kSize, directory);
      options.cross_memory_attach = true;
      const auto port = OpenPort(options, seat.exchange);
      ASSERT_NE(port, nullptr);
      EXPECT_FALSE(port->peer_memory().CanAttach());
      EXPECT_THAT(port->Description(), HasSubstr("rank 1: rank 0 (host h, pid "));
      EXPECT_THAT(port->Description(),
                  HasSubstr(std::string(refusal.named) + " was refused: Operation not permitted"));
      RewritesSuite(port.get(), seat.rank, kSize, 42).Run(30);
    });
  }
}

class PeerMemoryError : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Of, PeerMemoryError, ::testing::Values(EFAULT, EPERM, ESRCH),
                         [](const auto& instance) {
                           return std::string(strerrorname_np(static_cast<int>(instance.param)));
                         });

// A dying process loses its memory first; and its pid may be another's, of another user.
TEST_P(PeerMemoryError, OfAPeerThatHasDiedSaysSo) {
  BesideAPausedRank(true, [](ShmPort& port) {
    Refuse(SYS_process_vm_readv, GetParam());
    while (!port.arena().HasEnded(1)) sched_yield();
    uint64_t buffer = 0;
    const Status status = port.peer_memory().Read(1, {PlaceKind::kPrivate, 4096}, &buffer, 8);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.ToString();
    EXPECT_THAT(status.message(), StartsWith("rank 1 (host h, pid "));
  });
}

TEST(PeerMemory, NamesWhoseMemoryIsGone) {
  BesideAPausedRank(false, [](ShmPort& port) {
    const auto text = [&](const void* theirs, void* own) {
      const Place place{PlaceKind::kPrivate,
                        static_cast<int64_t>(reinterpret_cast<uintptr_t>(theirs))};
      const Status status = port.peer_memory().Read(1, place, own, 8);
      EXPECT_EQ(status.code(), StatusCode::kInternal);
      return status.message();
    };
    static uint64_t there = 0;  // In the parent, and so in both ranks.
    EXPECT_THAT(text(nullptr, &there),
                StartsWith("cannot access the memory of rank 1 (host h, pid "));
    void* const freed =
        mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(freed, kPageBytes);
    EXPECT_THAT(text(&there, freed), StartsWith("the memory of this rank's tensor ("));
  });
}

// A filter that came after the start: waiting goes on, with a look each millisecond, as nobody can
// be relied on to ring. Who is rung looks every 50 ms, at least.
TEST(Waiter, GoesOnWhenTheKernelRefusesBarriers) {
  const ShmDirectory directory;
  ForkedRanks ranks(2, [&](const ForkedRanks::Seat& seat) {
    const auto port = OpenPort(OptionsOf(seat.rank, 2, directory), seat.exchange);
    ASSERT_NE(port, nullptr);
    Refuse(SYS_membarrier, EPERM);
    if (seat.rank == 1) raise(SIGSTOP);  // So that the other one sleeps.
    RewritesSuite(port.get(), seat.rank, 2, 42).Run(30);
  });
  ranks.AwaitStop(1);
  constexpr int kSleeps = 40;
  const TimePoint start = Now();
  ranks.AwaitSleeps(0, kSleeps);
  EXPECT_LT(Now() - start, kSleeps * std::chrono::milliseconds(25));
  kill(ranks.pid(1), SIGCONT);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

TEST(PeerMemory, ChecksWhatPeersSay) {
  OnThreadsWithPort(1, kSmallSlot, [](ShmPort& port, int) {
    const PeerMemory& memory = port.peer_memory();
    const int64_t zone_bytes = port.heap()->zone_bytes();
    for (const Place& place :
         {Place{PlaceKind::kHeap, -1}, Place{PlaceKind::kHeap, zone_bytes - 7},
          Place{PlaceKind::kHeap, INT64_MAX}, Place{PlaceKind::kUnreachable, 0},
          Place{PlaceKind::kSlot, 0}, Place{static_cast<PlaceKind>(99), 0}}) {
      uint64_t buffer = 0;
      EXPECT_EQ(memory.Read(0, place, &buffer, 8).code(), StatusCode::kInternal);
      const Status status = memory.Write(0, place, &buffer, 8);
      EXPECT_THAT(status.message(), HasSubstr("sent a tensor address outside its shared memory"));
    }
    uint64_t buffer = 0;
    const Status status = memory.Read(0, {PlaceKind::kPrivate, 64}, &buffer, 8);
    EXPECT_THAT(status.message(), HasSubstr("(8 bytes at 64): Bad address"));
    EXPECT_THAT(status.message(), HasSubstr("MYDIST_CROSS_MEMORY_ATTACH=off avoids such access"));
  });
}

// A tmpfs of its own for this process; false where that takes rights we do not have.
bool MountTmpfs(const std::string& path, const std::string& options) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) == 0;
}

enum ExitCode { kPassed = 0, kFailed = 1, kNoRights = 2 };

// Passes in a process of its own, whose mounts are not seen elsewhere.
void OnTmpfs(const std::string& options, const std::function<void(const ShmDirectory&)>& body) {
  const ShmDirectory directory;
  const pid_t pid = fork();
  if (pid == 0) {
    if (!MountTmpfs(directory.path(), options)) _exit(kNoRights);
    body(directory);
    fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? kFailed : kPassed);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  const char* const required = getenv("TEST_REQUIRED");
  if (WEXITSTATUS(status) == kNoRights && required != nullptr) {
    EXPECT_THAT(required, Not(HasSubstr("namespaces"))) << "they are denied";
  }
  if (WEXITSTATUS(status) == kNoRights) GTEST_SKIP() << "mounting a tmpfs needs more rights";
  EXPECT_EQ(WEXITSTATUS(status), kPassed);
}

int64_t FreeBytes(const ShmDirectory& directory) {
  return static_cast<int64_t>(std::filesystem::space(directory.path()).available);
}

// The arena fits, not all tensors in the heap do: an error and no signal, and private memory
// serves.
TEST(SmallFileSystem, OfSixteenMegabytesIsSharedOutButForAQuarter) {
  OnTmpfs("size=16m", [](const ShmDirectory& directory) {
    std::array<std::shared_ptr<uint8_t>, 2> kept;
    InMemoryRendezvous rendezvous(2);
    RunAsRanks(2, [&](int rank) {
      ArenaOptions options = OptionsOf(rank, 2, directory);
      options.zone_bytes = ArenaOptions::kAutomaticZone;
      const auto port = OpenPort(options, rendezvous.ForRank(rank));
      ASSERT_TRUE(port != nullptr && port->heap() != nullptr);
      EXPECT_EQ(port->heap()->zone_bytes(), int64_t{4} << 20);
      EXPECT_THAT(port->heap()->Allocate(int64_t{9} << 20).status().message(),
                  HasSubstr("on each of 2 ranks: needed 18874368 bytes, free 1"));
      const auto all = port->heap()->Allocate(int64_t{4} << 20);
      ASSERT_TRUE(all.ok()) << all.status().ToString();
      kept[static_cast<size_t>(rank)] = *all;
      EXPECT_FALSE(port->heap()->Allocate(1).ok());
      RewritesSuite(port.get(), rank, 2, 42).Run(20);
    });
    EXPECT_GE(FreeBytes(directory), int64_t{4} << 20);
  });
}

// Others have filled it since the start.
TEST(SmallFileSystem, LeavesToOthersWhatTheyMayNeed) {
  OnTmpfs("size=16m", [](const ShmDirectory& directory) {
    InMemoryRendezvous rendezvous(1);
    ArenaOptions options = OptionsOf(0, 1, directory);
    options.zone_bytes = ArenaOptions::kAutomaticZone;
    const auto port = OpenPort(options, rendezvous.ForRank(0));
    ASSERT_TRUE(port != nullptr && port->heap() != nullptr);
    const std::string theirs = directory.path() + "/theirs";
    std::ofstream(theirs) << std::string(size_t{8} << 20, 'x');
    const auto refused = port->heap()->Allocate(int64_t{4} << 20);
    EXPECT_THAT(refused.status().message(), HasSubstr(": needed 4194304 bytes, free "));
    EXPECT_THAT(refused.status().message(), HasSubstr("of which 4194304 are kept for other"));
    EXPECT_GE(FreeBytes(directory), int64_t{7} << 20);
    std::filesystem::remove(theirs);
    EXPECT_TRUE(port->heap()->Allocate(int64_t{4} << 20).ok());
  });
}

}  // namespace
}  // namespace mydist::shm
