// Buffers rewritten at random times, by threads and by processes, over every way that tensors take.
#include <gtest/gtest.h>

#include "algorithms/shm/rewrites_suite.h"
#include "algorithms/shm/shm_ranks.h"
#include "conformance/deep.h"
#include "conformance/sanitizers.h"

namespace mydist::shm {
namespace {

const int kRounds = InDeep(kIsSanitized ? 60 : 150, 150, 40);

using Rewrites = RanksAndAttach;
INSTANTIATE_TEST_SUITE_P(RanksAndAttach, Rewrites,
                         ::testing::Combine(::testing::ValuesIn(Ranks(1)), Rewrites::EveryAttach()),
                         Rewrites::NameOf);

TEST_P(Rewrites, AtRandomTimesDoNotReachOtherThreads) {
  OnThreadsWithPort(
      size(), kSmallSlot,
      [&](ShmPort& port, int rank) { RewritesSuite(&port, rank, size(), 11).Run(kRounds); },
      attach());
}

TEST_P(Rewrites, AtRandomTimesDoNotReachOtherProcesses) {
  OnProcessesWithPort(
      size(),
      [&](ShmPort& port, int rank) {
        EXPECT_EQ(port.peer_memory().CanAttach(), attach().value_or(true)) << port.Description();
        RewritesSuite(&port, rank, size(), 23).Run(kRounds);
      },
      attach());
}

}  // namespace
}  // namespace mydist::shm
