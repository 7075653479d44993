#include "config/stopped_processes.h"

#include <gtest/gtest.h>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/process.h"

namespace mydist {
namespace {

// A program that runs with these variables.
pid_t StartWith(const char* job, const char* rank) {
  std::array<const char*, 3> arguments = {"sleep", "60", nullptr};
  std::array<const char*, 4> environment = {"OTHER_JOB=a", job, rank, nullptr};
  pid_t pid = -1;
  EXPECT_EQ(
      posix_spawn(&pid, "/bin/sleep", nullptr, nullptr, const_cast<char* const*>(arguments.data()),
                  const_cast<char* const*>(environment.data())),
      0);
  return pid;
}

void Stop(pid_t pid) {
  EXPECT_EQ(kill(pid, SIGSTOP), 0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!IsStopped(pid)) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << ProcessStateText(pid);
    usleep(1000);
  }
}

TEST(FindStopped, OnlyStoppedProcessesOfTheSameJobAreFound) {
  ASSERT_EQ(setenv("JOB", "a", 1), 0);
  const std::array<pid_t, 3> pids = {StartWith("JOB=a", "RANK=7"), StartWith("JOB=a", "RANK=8"),
                                     StartWith("JOB=ab", "RANK=9")};
  Stop(pids[0]);
  Stop(pids[2]);
  const std::vector<StoppedProcess> found = FindStopped("JOB", "RANK");
  ASSERT_EQ(found.size(), 1);
  EXPECT_EQ(found[0].pid, pids[0]);
  EXPECT_EQ(found[0].value, "7");
  EXPECT_TRUE(FindStopped("JOB", "RAN").empty());
  unsetenv("JOB");
  EXPECT_TRUE(FindStopped("JOB", "RANK").empty());
  for (const pid_t pid : pids) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

}  // namespace
}  // namespace mydist
