#include "base/process.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>

namespace mydist {
namespace {

// A child of this test, which runs `body` when it is told to end.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    EXPECT_EQ(pipe2(pipe_.data(), O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(pipe_[1]);
      char none = 0;
      [[maybe_unused]] const ssize_t end = read(pipe_[0], &none, 1);
      body();
      _exit(0);
    }
    close(pipe_[0]);
  }
  ~Child() {
    if (!is_reaped_) {
      kill(pid_, SIGKILL);
      Reap();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // It is a zombie then.
  void End() const {
    close(pipe_[1]);
    siginfo_t info{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT), 0);
  }
  void Reap() {
    is_reaped_ = true;
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
  }

 private:
  std::array<int, 2> pipe_{};
  pid_t pid_ = -1;
  bool is_reaped_ = false;
};

bool IsLinuxAtLeast(int major, int minor) {
  utsname system{};
  int own_major = 0;
  int own_minor = 0;
  EXPECT_EQ(uname(&system), 0);
  EXPECT_EQ(std::sscanf(system.release, "%d.%d", &own_major, &own_minor), 2);
  return own_major > major || (own_major == major && own_minor >= minor);
}

void EndBy(int number) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  signal(number, SIG_DFL);  // A sanitizer may handle it.
  raise(number);
}

struct Ending {
  const char* name;
  std::function<void()> body;
  ProcessEnd end;
};

class ProcessThat : public ::testing::TestWithParam<Ending> {};
INSTANTIATE_TEST_SUITE_P(
    Ends, ProcessThat,
    ::testing::Values(Ending{"IsKilled", [] { EndBy(SIGKILL); }, {true, SIGKILL}},
                      Ending{"Crashes", [] { EndBy(SIGSEGV); }, {true, SIGSEGV}},
                      Ending{"Fails", [] { _exit(23); }, {false, 23}},
                      Ending{"Succeeds", [] { _exit(0); }, {false, 0}}),
    [](const auto& instance) { return instance.param.name; });

TEST_P(ProcessThat, TellsHowBeforeAndAfterItsParentHasAsked) {
  const Ending& ending = GetParam();
  Child child(ending.body);
  const Process process(child.pid());
  ASSERT_TRUE(process.is_open());
  EXPECT_EQ(process.End(), std::nullopt);
  child.End();
  EXPECT_EQ(process.End(), ending.end);
  child.Reap();
  const bool is_told_for_good = IsLinuxAtLeast(6, 15);
  EXPECT_EQ(process.End(), is_told_for_good ? std::optional(ending.end) : std::nullopt);
}

TEST(Process, IsNotOpenWhereThereIsNone) {
  Child child([] {});
  child.End();
  child.Reap();
  const Process process(child.pid());
  EXPECT_FALSE(process.is_open());
  EXPECT_EQ(process.End(), std::nullopt);
}

// As by a program that closes all descriptors it does not know. The file stays the program's.
TEST(Process, TellsNothingOfAnotherFileWithTheNumberOfItsDescriptor) {
  Child child([] {});
  const int next = dup(STDERR_FILENO);
  close(next);
  {
    const Process process(child.pid());
    ASSERT_TRUE(FileIdentity::Of(next).has_value());
    ASSERT_EQ(dup2(STDERR_FILENO, next), next);
    child.End();
    EXPECT_EQ(process.End(), std::nullopt);
  }
  EXPECT_TRUE(FileIdentity::Of(next).has_value());
  close(next);
}

// A read fails, too, where a process ends between opening and reading.
TEST(ContentsOf, AFileThatCannotBeReadIsEmpty) {
  EXPECT_EQ(ContentsOf("/proc"), "");
  EXPECT_EQ(ContentsOf("/proc/none"), "");
  const std::string own = ContentsOf("/proc/self/stat");
  EXPECT_EQ(own.substr(0, own.find(' ')), std::to_string(getpid()));
  EXPECT_GT(ContentsOf("/proc/self/smaps").size(), 4096U) << "in several pieces";
}

TEST(PidNamespace, IsTheSameInAProcessOfTheSameKind) {
  const std::string own = PidNamespace();
  EXPECT_GT(own.size(), 36 + 2);
  EXPECT_EQ(PidNamespace(), own);
}

}  // namespace
}  // namespace mydist
