#include "base/failpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <stdexcept>
#include <string>

namespace mydist {
namespace {

using std::chrono::milliseconds;

// Arms for the length of a test.
class Armed {
 public:
  explicit Armed(const std::string& text) { ArmFailpoint(Failpoint::Parse(text).value()); }
  ~Armed() { ArmFailpoint(std::nullopt); }
};

TEST(FailpointTest, ParsesPlacePassAndAct) {
  const std::optional<Failpoint> kill = Failpoint::Parse("copy_in:5:kill");
  ASSERT_TRUE(kill.has_value());
  EXPECT_EQ(kill->place, FailPlace::kCopyIn);
  EXPECT_EQ(kill->pass, 5);
  EXPECT_EQ(kill->act, FailAct::kKill);
  const std::optional<Failpoint> delay = Failpoint::Parse("shutdown:1:delay_250");
  ASSERT_TRUE(delay.has_value());
  EXPECT_EQ(delay->place, FailPlace::kShutdown);
  EXPECT_EQ(delay->act, FailAct::kDelay);
  EXPECT_EQ(delay->delay, milliseconds(250));
}

TEST(FailpointTest, RefusesEverythingElse) {
  for (const char* text :
       {"", "reduce", "reduce:1", "reduce:1:", "reduce:0:kill", "reduce:-1:kill", "reduce:x:kill",
        "reduce:1:die", "reduse:1:kill", "reduce::kill", ":1:kill", "reduce:1:kill:2",
        "reduce:1:delay_", "reduce:1:delay_0", "reduce:1:delay_x", "reduce:1:delay_600001",
        "reduce: 1:kill", "reduce:99999999999999999999:kill", "REDUCE:1:kill"}) {
    EXPECT_FALSE(Failpoint::Parse(text).has_value()) << text;
  }
}

TEST(FailpointTest, StrikesOnceAtThatPassOfThatPlace) {
  const Armed armed("reduce:3:raise");
  PassFailpoint(FailPlace::kReduce);
  PassFailpoint(FailPlace::kFuse);
  PassFailpoint(FailPlace::kFuse);
  PassFailpoint(FailPlace::kReduce);
  EXPECT_THROW(PassFailpoint(FailPlace::kReduce), std::runtime_error);
  PassFailpoint(FailPlace::kReduce);
}

TEST(FailpointTest, TellsWhereAndWhen) {
  const Armed armed("callback:1:raise");
  testing::internal::CaptureStderr();
  EXPECT_THROW(PassFailpoint(FailPlace::kCallback), std::runtime_error);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::MatchesRegex("failpoint callback strikes at [0-9]+\\.[0-9]+ s\n"));
}

TEST(FailpointTest, ADisarmedPlaceDoesNothing) {
  { const Armed armed("reduce:1:raise"); }
  PassFailpoint(FailPlace::kReduce);
  const Armed again("reduce:2:raise");
  PassFailpoint(FailPlace::kReduce);  // Passes count from here.
  EXPECT_THROW(PassFailpoint(FailPlace::kReduce), std::runtime_error);
}

TEST(FailpointTest, ADelayTakesItsTime) {
  const Armed armed("fuse:1:delay_30");
  const auto begun = std::chrono::steady_clock::now();
  PassFailpoint(FailPlace::kFuse);
  EXPECT_GE(std::chrono::steady_clock::now() - begun, milliseconds(30));
}

TEST(FailpointDeathTest, EndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto pass = [](const char* text) {
    const Armed armed(text);
    PassFailpoint(FailPlace::kReduce);
  };
  EXPECT_EXIT(pass("reduce:1:kill"), testing::KilledBySignal(SIGKILL), "failpoint reduce strikes");
  EXPECT_EXIT(pass("reduce:1:segv"), testing::KilledBySignal(SIGSEGV), "failpoint reduce strikes");
  EXPECT_EXIT(pass("reduce:1:exit"), testing::ExitedWithCode(0), "failpoint reduce strikes");
}

}  // namespace
}  // namespace mydist
