// The name that an arena has for a moment where ranks do not see each other's processes: nothing
// stays of it, whichever rank is killed, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>

#include "algorithms/shm/refused_calls.h"
#include "algorithms/shm/shm_ranks.h"
#include "memory/shm/fleeting_name.h"

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

// Runs in a forked process with a file of a drawn name; its exit code, or minus the signal.
int WithNamedFile(
    const std::function<int(const std::string& directory, const std::string& name)>& body,
    bool* is_left) {
  const ShmDirectory directory;
  const std::string name = *ArenaFile::DrawName();
  const std::string path = directory.path() + "/" + name;
  const pid_t pid = fork();
  if (pid == 0) {
    std::ofstream(path) << "x";
    const int code = body(directory.path(), name);
    fflush(nullptr);
    _exit(code);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  *is_left = std::filesystem::exists(path);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class EndingSignal : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Of, EndingSignal, ::testing::Values(SIGTERM, SIGHUP, SIGINT),
                         [](const auto& instance) {
                           return std::string(sigabbrev_np(instance.param));
                         });

TEST_P(EndingSignal, RemovesTheNameAndEndsTheProcess) {
  bool is_left = true;
  const int code = WithNamedFile(
      [](const std::string& directory, const std::string& name) {
        const FleetingName removal(directory, name);
        raise(GetParam());
        return 1;
      },
      &is_left);
  EXPECT_EQ(code, -GetParam());
  EXPECT_FALSE(is_left);
}

TEST_P(EndingSignal, GoesOnToTheHandlerThatWasThere) {
  for (const bool takes_information : {false, true}) {
    bool is_left = true;
    const int code = WithNamedFile(
        [&](const std::string& directory, const std::string& name) {
          struct sigaction action {};
          action.sa_flags = takes_information ? SA_SIGINFO : 0;
          if (takes_information) {
            action.sa_sigaction = [](int, siginfo_t* from, void*) {
              _exit(from->si_pid == getpid() ? 7 : 1);
            };
          } else {
            action.sa_handler = [](int number) { _exit(number == GetParam() ? 7 : 1); };
          }
          sigaction(GetParam(), &action, nullptr);
          const FleetingName removal(directory, name);
          raise(GetParam());
          return 1;
        },
        &is_left);
    EXPECT_EQ(code, 7);
    EXPECT_FALSE(is_left);
  }
}

TEST_P(EndingSignal, StaysIgnored) {
  bool is_left = false;
  const int code = WithNamedFile(
      [](const std::string& directory, const std::string& name) {
        signal(GetParam(), SIG_IGN);
        const auto removal = std::make_unique<FleetingName>(directory, name);
        raise(GetParam());
        const bool is_there = std::filesystem::exists(directory + "/" + name);
        return is_there && signal(GetParam(), SIG_IGN) == SIG_IGN ? 7 : 1;
      },
      &is_left);
  EXPECT_EQ(code, 7);
}

// Two ranks in one process, and a handler that the program puts in while there is a name.
TEST_P(EndingSignal, HasItsHandlerBackAfterwards) {
  bool is_left = true;
  const int code = WithNamedFile(
      [](const std::string& directory, const std::string& name) {
        auto first = std::make_unique<FleetingName>(directory, name);
        auto second = std::make_unique<FleetingName>(directory, name);
        first.reset();
        if (std::filesystem::exists(directory + "/" + name)) return 1;
        if (signal(GetParam(), SIG_DFL) == SIG_DFL) return 2;
        second.reset();
        if (signal(GetParam(), [](int) { _exit(7); }) != SIG_DFL) return 3;
        second = std::make_unique<FleetingName>(directory, name);
        signal(GetParam(), [](int) { _exit(8); });
        second.reset();
        raise(GetParam());
        return 4;
      },
      &is_left);
  EXPECT_EQ(code, 8);
  EXPECT_FALSE(is_left);
}

TEST(FleetingName, RemovesNothingButFiles) {
  const ShmDirectory directory;
  const std::string file = directory.path() + "/file";
  const std::string link = directory.path() + "/link";
  std::ofstream(file) << "x";
  std::filesystem::create_symlink(file, link);
  { const FleetingName removal(directory.path(), "link"); }
  { const FleetingName removal(directory.path(), ""); }
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  { const FleetingName removal(directory.path(), "file"); }
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace mydist::shm
