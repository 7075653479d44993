#include "job/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "conformance/sanitizers.h"
#include "conformance/status_checks.h"
#include "engine/outcome_of.h"

namespace mydist {
namespace {

class ProcessTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_TRUE(process::Shutdown().ok());
    unsetenv("MYDIST_CACHE_CAPACITY");
  }
};

TEST_F(ProcessTest, BeforeInitThereIsNoJob) {
  EXPECT_FALSE(process::IsInitialized());
  const Status status = process::CurrentJob().status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "mydist has not been initialized; call mydist.init() first");
  EXPECT_TRUE(process::Shutdown().ok());
}

TEST_F(ProcessTest, OneRankWorksWithoutAnyBackend) {
  ASSERT_TRUE(process::Init({}).ok());
  EXPECT_TRUE(process::Init({}).ok()) << "a second init changes nothing";
  EXPECT_EQ((*process::CurrentJob())->engine().topology().size, 1);
  EXPECT_EQ((*process::CurrentJob())->backend(), "local");
  std::vector<float> data(4, 2.5F);
  const Result<Handle> handle = (*process::CurrentJob())->engine().Submit(OneTensor("x", &data));
  ASSERT_TRUE(handle.ok()) << handle.status().ToString();
  EXPECT_TRUE(OutcomeOf(*handle).ok());
  EXPECT_THAT(data, ::testing::Each(2.5F));
}

TEST_F(ProcessTest, SeveralRanksNeedARendezvous) {
  const Status status = process::Init({.rank = 0, .size = 2});
  ExpectError(status, StatusCode::kInvalidArgument,
              {"a job of 2 ranks needs a rendezvous and has none"});
  EXPECT_FALSE(process::IsInitialized());
}

TEST_F(ProcessTest, ABadSettingIsNamedWithItsRange) {
  setenv("MYDIST_CACHE_CAPACITY", "many", 1);
  const Status status = process::Init({});
  ExpectError(status, StatusCode::kInvalidArgument, {"MYDIST_CACHE_CAPACITY", "many"});
}

TEST_F(ProcessTest, HandlesOutliveShutdown) {
  ASSERT_TRUE(process::Init({}).ok());
  std::vector<float> data(4, 1.0F);
  const Handle handle = *(*process::CurrentJob())->engine().Submit(OneTensor("x", &data));
  ASSERT_TRUE(process::Shutdown().ok());
  const Status outcome = OutcomeOf(handle);
  // It was in time or it was not; but a handle is never left hanging.
  EXPECT_TRUE(outcome.ok() || outcome.code() == StatusCode::kAborted) << outcome.ToString();
}

TEST_F(ProcessTest, AThousandCycles) {
  for (int cycle = 0; cycle < 1000; ++cycle) {
    ASSERT_TRUE(process::Init({}).ok());
    std::vector<float> data(4, 1.0F);
    const Handle handle = *(*process::CurrentJob())->engine().Submit(OneTensor("x", &data));
    ASSERT_TRUE(OutcomeOf(handle).ok());
    ASSERT_TRUE(process::Shutdown().ok());
  }
}

// The exit code of a child that runs `body`.
int InForkedChild(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(ProcessTest, AForkedChildIsToldSo) {
  // Theirs may be locked for ever in the child by a thread that lives on in the parent only.
  if (kIsSanitized) GTEST_SKIP() << "the sanitizers' allocator does not survive a fork";
  ASSERT_TRUE(process::Init({}).ok());
  EXPECT_EQ(InForkedChild([] {
              return !process::IsInitialized() && process::Shutdown().ok() &&
                     process::Init({}).message().find("forked") != std::string::npos &&
                     process::CurrentJob().status().message().find("forked") != std::string::npos;
            }),
            0);
  std::vector<float> data(4, 1.0F);
  const Handle handle = *(*process::CurrentJob())->engine().Submit(OneTensor("x", &data));
  EXPECT_TRUE(OutcomeOf(handle).ok()) << "the parent goes on";
}

TEST_F(ProcessTest, AChildForkedOutsideInitMayInitialize) {
  EXPECT_EQ(InForkedChild([] {
              return process::Init({}).ok() && process::IsInitialized() && process::Shutdown().ok();
            }),
            0);
}

}  // namespace
}  // namespace mydist
