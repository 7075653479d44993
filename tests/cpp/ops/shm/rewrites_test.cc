// Buffers rewritten at random times, by threads and by processes, over every way that tensors take.
#include <gtest/gtest.h>

#include <tuple>

#include "conformance/sanitizers.h"
#include "ops/shm/rewrites_suite.h"
#include "ops/shm/shm_ranks.h"

namespace mydist::shm {
namespace {

constexpr int kRounds = kIsSanitized ? 60 : 150;

class Rewrites : public ::testing::TestWithParam<std::tuple<int, CrossMemoryAttach>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  CrossMemoryAttach attach() const { return std::get<1>(GetParam()); }
};
std::string NameOf(const ::testing::TestParamInfo<Rewrites::ParamType>& instance) {
  constexpr std::array kNames = {"Auto", "On", "Off"};
  const auto& [size, attach] = instance.param;
  return std::to_string(size) + "ranksAttach" + kNames[static_cast<size_t>(attach)];
}

INSTANTIATE_TEST_SUITE_P(RanksAndAttach, Rewrites,
                         ::testing::Combine(::testing::Range(1, 9),
                                            ::testing::Values(CrossMemoryAttach::kAuto,
                                                              CrossMemoryAttach::kOn,
                                                              CrossMemoryAttach::kOff)),
                         NameOf);

TEST_P(Rewrites, AtRandomTimesDoNotReachOtherThreads) {
  OnThreadsWithPort(
      size(), kSmallSlot,
      [&](ShmPort& port, int rank) { RewritesSuite(&port, rank, size(), 11).Run(kRounds); },
      attach());
}

TEST_P(Rewrites, AtRandomTimesDoNotReachOtherProcesses) {
  const ShmDirectory directory;
  ForkedRanks ranks(size(), [&](const ForkedRanks::Seat& seat) {
    ArenaOptions options = OptionsOf(seat.rank, size(), directory);
    options.cross_memory_attach = attach();
    const auto port = OpenPort(options, seat.exchange);
    ASSERT_NE(port, nullptr);
    RewritesSuite(port.get(), seat.rank, size(), 23).Run(kRounds);
  });
  for (int rank = 0; rank < size(); ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
}

}  // namespace
}  // namespace mydist::shm
