#include "memory/shm/forked_ranks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>

namespace mydist::shm {
namespace {

using ::testing::HasSubstr;

void FailAnAssertion() { ASSERT_TRUE(false) << "seven is not eight"; }

TEST(ForkedRanks, EndAtOnceWithTheTextOfAFailedAssertion) {
  std::array<int, 2> output{};
  ASSERT_EQ(pipe(output.data()), 0);
  ForkedRanks ranks(2, [&](const ForkedRanks::Seat& seat) {
    if (seat.rank == 0) {
      dup2(output[1], STDOUT_FILENO);
      FailAnAssertion();
    }
    pause();  // As who waits for the other.
  });
  EXPECT_EQ(ranks.Wait(1), -SIGKILL);
  EXPECT_EQ(ranks.Wait(0), ForkedRanks::kGaveUp);
  close(output[1]);
  std::string text(4096, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, read(output[0], text.data(), 4096))));
  close(output[0]);
  EXPECT_THAT(text, HasSubstr("seven is not eight"));
}

TEST(ForkedRanks, AFailedExpectationIsSeenAtTheEnd) {
  ForkedRanks ranks(2, [&](const ForkedRanks::Seat& seat) {
    dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
    EXPECT_EQ(seat.rank, 0);
  });
  EXPECT_EQ(ranks.Wait(0), 0);
  EXPECT_EQ(ranks.Wait(1), 1);
}

}  // namespace
}  // namespace mydist::shm
