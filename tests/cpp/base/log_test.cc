#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace mydist {
namespace {

using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  void TearDown() override {
    SetLogLevel(LogLevel::kWarning);
    SetLogRank(-1, 0);
  }
};

TEST_F(LogTest, LineHasLevelTimeRankPlaceAndMessage) {
  SetLogRank(3, 8);
  ::testing::internal::CaptureStderr();
  MYDIST_LOG(kWarning) << "tensor 'x' waits for " << 2 << " ranks";
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              MatchesRegex("mydist WARNING [0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.[0-9]+ "
                           "\\[rank 3/8\\] log_test\\.cc:[0-9]+ tensor 'x' waits for 2 ranks\n"));
}

TEST_F(LogTest, RankIsLeftOutUntilItIsKnown) {
  ::testing::internal::CaptureStderr();
  MYDIST_LOG(kError) << "early";
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              MatchesRegex("mydist ERROR [0-9:.]+ log_test\\.cc:[0-9]+ early\n"));
}

TEST_F(LogTest, OnlyLinesOfTheLevelAndAboveAreShown) {
  const auto shown_at = [](LogLevel level) {
    SetLogLevel(level);
    ::testing::internal::CaptureStderr();
    MYDIST_LOG(kTrace) << "t";
    MYDIST_LOG(kDebug) << "d";
    MYDIST_LOG(kInfo) << "i";
    MYDIST_LOG(kWarning) << "w";
    MYDIST_LOG(kError) << "e";
    const std::string text = ::testing::internal::GetCapturedStderr();
    std::string letters;
    for (size_t i = 1; i < text.size(); ++i) {
      if (text[i] == '\n') letters += text[i - 1];
    }
    return letters;
  };
  EXPECT_EQ(shown_at(LogLevel::kTrace), "tdiwe");
  EXPECT_EQ(shown_at(LogLevel::kDebug), "diwe");
  EXPECT_EQ(shown_at(LogLevel::kInfo), "iwe");
  EXPECT_EQ(shown_at(LogLevel::kWarning), "we");
  EXPECT_EQ(shown_at(LogLevel::kError), "e");
  EXPECT_EQ(shown_at(LogLevel::kOff), "");
}

TEST_F(LogTest, WhatIsNotShownIsNotComputed) {
  int computed_count = 0;
  const auto compute = [&] { return ++computed_count; };
  MYDIST_LOG(kDebug) << compute();
  EXPECT_EQ(computed_count, 0);
}

TEST_F(LogTest, LogIsOneStatement) {
  ::testing::internal::CaptureStderr();
  // clang-format off
  if (GetLogLevel() == LogLevel::kOff)
    MYDIST_LOG(kError) << "then";
  else
    MYDIST_LOG(kError) << "else";
  // clang-format on
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::EndsWith("else\n"));
}

TEST_F(LogTest, LinesOfSeveralThreadsDoNotMix) {
  const std::string body(300, 'x');
  ::testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&body] {
      for (int i = 0; i < 50; ++i) MYDIST_LOG(kError) << body;
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::istringstream lines(::testing::internal::GetCapturedStderr());
  int line_count = 0;
  for (std::string line; std::getline(lines, line); ++line_count) {
    EXPECT_TRUE(line.starts_with("mydist ERROR ")) << line;
    EXPECT_TRUE(line.ends_with(" " + body)) << line;
  }
  EXPECT_EQ(line_count, 200);
}

}  // namespace
}  // namespace mydist
