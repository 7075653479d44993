#include "world/rank_ends.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <thread>

namespace mydist {
namespace {

// As launcher/rank_ends.py makes it.
class File {
 public:
  File() { EXPECT_EQ(ftruncate(descriptor_, 1 << 10), 0); }
  ~File() { close(descriptor_); }
  int descriptor() const { return descriptor_; }
  void Tell(int rank, uint8_t kind, uint8_t number) const {
    const std::array<uint8_t, 2> entry = {kind, number};
    EXPECT_EQ(pwrite(descriptor_, entry.data(), entry.size(), off_t{rank} * 2), 2);
  }

 private:
  const int descriptor_ = memfd_create("rank ends", MFD_CLOEXEC);
};

TEST(RankEnds, AreFoundByTheNumberInThisJob) {
  const File file;
  file.Tell(4, 2, 9);
  file.Tell(7, 1, 3);
  const RankEnds all(file.descriptor(), {});
  EXPECT_EQ(all.Find(4), (ProcessEnd{.by_signal = true, .number = 9}));
  EXPECT_EQ(all.Find(7), (ProcessEnd{.by_signal = false, .number = 3}));
  const RankEnds some(file.descriptor(), {1, 4, 7});
  EXPECT_EQ(some.Find(0), std::nullopt);
  EXPECT_EQ(some.Find(1), (ProcessEnd{.by_signal = true, .number = 9}));
  EXPECT_EQ(some.Find(2), (ProcessEnd{.by_signal = false, .number = 3}));
}

TEST(RankEnds, NothingIsKnownOfOthers) {
  const File file;
  file.Tell(1, 77, 9);  // From another version.
  const RankEnds ends(file.descriptor(), {0, 1});
  for (const int rank : {-1, 0, 1, 2}) EXPECT_EQ(ends.Find(rank), std::nullopt) << rank;
  EXPECT_EQ(RankEnds(file.descriptor(), {}).Find(1 << 20), std::nullopt);
  EXPECT_EQ(RankEnds().AwaitOne(std::array{0, 1}), std::nullopt);
  EXPECT_EQ(RankEnds(1 << 20, {}).Find(0), std::nullopt);
}

TEST(RankEnds, AnotherFileWithTheNumberOfTheDescriptorTellsNothing) {
  const File file;
  const File other;
  file.Tell(0, 2, 9);
  other.Tell(0, 2, 11);
  const RankEnds ends(file.descriptor(), {});
  EXPECT_NE(ends.Find(0), std::nullopt);
  EXPECT_EQ(dup2(other.descriptor(), file.descriptor()), file.descriptor());
  EXPECT_EQ(ends.Find(0), std::nullopt);
}

TEST(RankEnds, AnEndToldAMomentLaterIsAwaited) {
  const File file;
  RankEnds ends(file.descriptor(), {});
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    file.Tell(2, 2, 11);
  });
  EXPECT_EQ(ends.AwaitOne(std::array{0, 2}), 2);
  later.join();
}

TEST(RankEnds, AllWaitsTogetherAreBounded) {
  const File file;
  RankEnds ends(file.descriptor(), {});
  EXPECT_EQ(ends.AwaitOne(std::array{0, 1}), std::nullopt);
  const TimePoint begin = Now();
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ends.AwaitOne(std::array{i}), std::nullopt);
  EXPECT_LT(Now() - begin, 50 * RankEnds::kGrace);
}

// A launcher sends it to the others when one rank has failed. mydistrun does not tell of that.
TEST(RankEnds, TheSignalOfALauncherIsNoCauseUnlessMydistrunTellsOfIt) {
  const File file;
  const RankEnds told(file.descriptor(), {});
  const RankEnds others(std::array<int64_t, 1>{0});
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    EXPECT_TRUE(told.IsCause({.by_signal = true, .number = number})) << number;
    EXPECT_FALSE(others.IsCause({.by_signal = true, .number = number})) << number;
  }
  for (const RankEnds* const ends : {&told, &others}) {
    EXPECT_TRUE(ends->IsCause({.by_signal = true, .number = SIGKILL}));
    EXPECT_FALSE(ends->IsCause({.by_signal = false, .number = 1}));
  }
}

// Rank 1 exits because of the end of rank 2, and rank 0 is this process.
TEST(RankEnds, OfTheProcessesOfAHostAreAskedOfTheKernel) {
  const pid_t failed = fork();
  if (failed == 0) _exit(1);
  const pid_t killed = fork();
  if (killed == 0) {
    pause();
    _exit(0);
  }
  RankEnds ends(std::array<int64_t, 4>{getpid(), failed, killed, 0});
  EXPECT_EQ(ends.Find(0), std::nullopt);
  EXPECT_EQ(ends.AwaitOne(std::array{3}), std::nullopt);
  EXPECT_EQ(ends.AwaitOne(std::array{1, 2}), 1);
  EXPECT_EQ(ends.Find(1), (ProcessEnd{.by_signal = false, .number = 1}));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    kill(killed, SIGKILL);
  });
  EXPECT_EQ(ends.AwaitOne(std::array{2}), 2);
  EXPECT_EQ(ends.Find(2), (ProcessEnd{.by_signal = true, .number = SIGKILL}));
  EXPECT_EQ(ends.AwaitOne(std::array{1, 2}), 2);
  later.join();
  for (const pid_t child : {failed, killed}) EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(RankEnds, AreToldInASentence) {
  EXPECT_EQ(EndText({.by_signal = false, .number = 3}, 2), "Rank 2 exited with code 3.");
  EXPECT_EQ(EndText({.by_signal = true, .number = 9}, 2), "SIGKILL (signal 9) ended rank 2.");
  EXPECT_EQ(EndText({.by_signal = true, .number = 40}, 2), "Signal 40 ended rank 2.");
}

}  // namespace
}  // namespace mydist
