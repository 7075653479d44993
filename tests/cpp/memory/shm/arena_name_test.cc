// The name that an arena has for a moment where ranks do not see each other's processes: the ranks
// that live remove it, and otherwise the next start.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>

#include "algorithms/shm/refused_calls.h"
#include "algorithms/shm/shm_ranks.h"
#include "memory/shm/arena_file.h"

namespace mydist::shm {
namespace {

constexpr int kRounds = 5;

size_t Index(int number) { return static_cast<size_t>(number); }

int NamesIn(const std::string& directory) {
  const std::filesystem::directory_iterator files(directory);
  return static_cast<int>(std::distance(begin(files), end(files)));
}

// Rounds between forked ranks in which the others are told when a rank is killed, or wait for ever.
class MortalExchange {
 public:
  static constexpr int kRanks = 3;
  struct Kill {
    int victim;
    int round;
    bool is_before;  // It has taken part in the round, or it has not.
    bool is_told;    // To the others.
  };

  explicit MortalExchange(const Kill& kill) : kill_(kill) {}

  ArenaExchange ForRank(int rank, const std::string& directory) {
    return [this, rank, directory, round = 0](const Bytes& mine) mutable {
      const int now = round++;
      DieIn({rank, now, true}, directory);
      auto all = Exchange(rank, now, mine);
      DieIn({rank, now, false}, directory);
      return all;
    };
  }
  // What the victim saw when it was killed; -1: it was not.
  int NamesAtKill() const { return board_->names_at_kill.load(); }

 private:
  struct Moment {
    int rank;
    int round;
    bool is_before;
  };
  struct Blob {
    std::atomic<bool> is_there{false};
    size_t bytes = 0;
    std::array<uint8_t, 1024> data{};
  };
  struct Board {
    std::atomic<int> names_at_kill{-1};
    std::array<std::array<Blob, kRanks>, kRounds> rounds;
  };

  static Board* MakeBoard() {
    void* memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (memory) Board();
  }

  void DieIn(const Moment& moment, const std::string& directory) {
    if (moment.rank != kill_.victim || moment.round != kill_.round) return;
    if (moment.is_before != kill_.is_before) return;
    board_->names_at_kill.store(NamesIn(directory));
    raise(SIGKILL);
  }

  Result<std::vector<Bytes>> Exchange(int rank, int round, const Bytes& mine) {
    auto& blobs = board_->rounds[Index(round)];
    Blob& own = blobs[Index(rank)];
    own.bytes = mine.size();
    std::copy(mine.begin(), mine.end(), own.data.begin());
    own.is_there.store(true);
    std::vector<Bytes> all;
    for (Blob& blob : blobs) {
      while (!blob.is_there.load()) {
        const bool is_lost = NamesAtKill() >= 0 && &blob == &blobs[Index(kill_.victim)];
        if (kill_.is_told && is_lost) return Status::PeerLost("a rank was killed");
        sched_yield();
      }
      all.emplace_back(blob.data.begin(), blob.data.begin() + static_cast<int64_t>(blob.bytes));
    }
    return all;
  }

  const Kill kill_;
  Board* const board_ = MakeBoard();  // Small, and few: left to the end of the process.
};

void MakeOld(const std::string& path) {
  const std::array<struct timespec, 2> times{{{time(nullptr) - 120, 0}, {time(nullptr) - 120, 0}}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times.data(), AT_SYMLINK_NOFOLLOW), 0);
}

// Rank 1 alone asks for a name, unless there are no files without. Gives what NamesAtKill does.
int NamesAtKill(const MortalExchange::Kill& how, bool has_nameless) {
  const ShmDirectory directory;
  MortalExchange exchange(how);
  ForkedRanks ranks(MortalExchange::kRanks, [&](const ForkedRanks::Seat& seat) {
    if (!has_nameless) RefuseNamelessFiles();
    ArenaOptions options = OptionsOf(seat.rank, MortalExchange::kRanks, directory);
    options.sees_processes = seat.rank != 1;
    const auto outcome = Arena::Establish(options, exchange.ForRank(seat.rank, directory.path()));
    if (outcome.ok()) pause();
    EXPECT_EQ(outcome.status().code(), StatusCode::kPeerLost);
  });
  EXPECT_EQ(ranks.Wait(how.victim), -SIGKILL);
  // Those that do not hear of it, or need it no more, are ended as a launcher does it.
  const bool is_over = how.round == kRounds - 1 && !how.is_before;
  const bool is_terminated = !how.is_told || is_over;
  for (int rank = 0; rank < MortalExchange::kRanks; ++rank) {
    if (rank == how.victim) continue;
    if (is_terminated) kill(ranks.pid(rank), SIGTERM);
    EXPECT_EQ(ranks.Wait(rank), is_terminated ? -SIGTERM : 0) << "rank " << rank;
  }
  // Where all ranks were killed a name may be left, until the next start.
  if (is_terminated) {
    for (const auto& file : std::filesystem::directory_iterator(directory.path())) {
      MakeOld(file.path());
    }
    ArenaFile::RemoveStaleNames(directory.path());
  }
  EXPECT_TRUE(directory.IsEmpty());
  return exchange.NamesAtKill();
}

class KilledWhileThereIsAName : public ::testing::TestWithParam<std::tuple<int, int, bool, bool>> {
 public:
  static std::string NameOf(const ::testing::TestParamInfo<ParamType>& instance) {
    const auto& [victim, round, is_before, is_told] = instance.param;
    return "Rank" + std::to_string(victim) + (is_before ? "Before" : "After") + "Round" +
           std::to_string(round) + (is_told ? "Told" : "Terminated");
  }
};
INSTANTIATE_TEST_SUITE_P(Kill, KilledWhileThereIsAName,
                         ::testing::Combine(::testing::Range(0, MortalExchange::kRanks),
                                            ::testing::Range(0, kRounds), ::testing::Bool(),
                                            ::testing::Bool()),
                         KilledWhileThereIsAName::NameOf);

TEST_P(KilledWhileThereIsAName, LeavesNothing) {
  const auto& [victim, round, is_before, is_told] = GetParam();
  for (const bool has_nameless : {true, false}) {
    const int names = NamesAtKill({victim, round, is_before, is_told}, has_nameless);
    // The maker gives it directly before the third round; after the fourth one it is removed.
    if (victim != 0 || (round == 3 && !is_before)) continue;
    EXPECT_EQ(names, round == 2 || round == 3 ? 1 : 0);
  }
}

TEST(StaleNames, GoWhenNoProcessHasALock) {
  const ShmDirectory directory;
  const std::string path = directory.path() + "/" + *ArenaFile::DrawName();
  std::ofstream(path) << "x";
  ArenaFile::RemoveStaleNames(directory.path());
  EXPECT_TRUE(std::filesystem::exists(path)) << "its maker may not have its lock yet";
  MakeOld(path);
  // A rank in another process.
  ForkedRanks ranks(1, [&](const ForkedRanks::Seat&) {
    const auto file = ArenaFile::Open(directory.path(), path.substr(path.rfind('/') + 1), 1);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    ASSERT_TRUE((*file)->Lock(5).ok());
    const pid_t sweeper = fork();  // It has none of these locks.
    if (sweeper == 0) {
      ArenaFile::RemoveStaleNames(directory.path());
      _exit(std::filesystem::exists(path) ? 0 : 1);
    }
    int status = 0;
    waitpid(sweeper, &status, 0);
    EXPECT_EQ(status, 0) << "a rank still has it";
  });
  EXPECT_EQ(ranks.Wait(0), 0);
  ArenaFile::RemoveStaleNames(directory.path());
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(StaleNames, AreOfFilesThatAnArenaHas) {
  const ShmDirectory directory;
  const std::string file = directory.path() + "/file";
  const std::string link = directory.path() + "/" + *ArenaFile::DrawName();
  std::ofstream(file) << "x";
  std::filesystem::create_symlink(file, link);
  MakeOld(file);
  MakeOld(link);
  ArenaFile::RemoveStaleNames(directory.path());
  EXPECT_TRUE(std::filesystem::is_symlink(link)) << "removed as stale";
  ArenaFile::RemoveName(directory.path(), link.substr(link.rfind('/') + 1));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_TRUE(std::filesystem::exists(file));
  ArenaFile::RemoveName(directory.path(), "file");
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace mydist::shm
