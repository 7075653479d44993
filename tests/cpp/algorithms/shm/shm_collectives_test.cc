// Collectives in shared memory: the conformance suites, and bits equal to those over transports.
#include "algorithms/shm/shm_collectives.h"

#include <gtest/gtest.h>

#include <atomic>

#include "algorithms/shm/shm_ranks.h"
#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"

namespace mydist::shm {
namespace {

using testing::Elements;
using testing::Rank;

void OnThreads(int size, const std::function<void(const Rank&)>& body) {
  OnThreadsWithPort(size, kSmallSlot, [&](ShmPort& port, int rank) {
    ShmCollectives collectives(&port, AllOf(size));
    body({rank, size, &collectives});
  });
}

class ShmRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShmRanks, ::testing::ValuesIn(Ranks(1)));

TEST_P(ShmRanks, Conform) { OnThreads(GetParam(), testing::CheckEveryCollective); }

TEST_P(ShmRanks, ConformAsProcesses) {
  const int size = GetParam();
  OnProcessesWithPort(size, [&](ShmPort& port, int rank) {
    ShmCollectives collectives(&port, AllOf(size));
    testing::CheckEveryCollective({rank, size, &collectives});
  });
}

TEST_P(ShmRanks, BarrierHoldsBackUntilAllHaveCome) {
  std::atomic<int> arrived = 0;
  OnThreads(GetParam(), [&](const Rank& me) { testing::CheckBarrier(me, arrived); });
}

// One step, many steps, and the rank-ordered algorithms over the rings.
TEST_P(ShmRanks, AlgorithmsAgreeBitwise) {
  const int size = GetParam();
  OnThreadsWithPort(size, kSmallSlot, [&](ShmPort& port, int rank) {
    ShmCollectives one_shot(&port, AllOf(size), {.one_shot_bytes = int64_t{1} << 40});
    ShmCollectives two_shot(&port, AllOf(size), {.one_shot_bytes = 0});
    RankOrderedCollectives over_rings(&port.transport());
    for (const DataType dtype : testing::TypesToTry()) {
      for (const ReduceOp op : testing::ReduceOpsOf(dtype)) {
        const Reduction reduction = Reduction{.dtype = dtype, .op = op}.Resolved(size);
        for (const int64_t count : {63, 5003}) {
          std::vector<std::vector<uint8_t>> results;
          for (Collectives* collectives :
               {static_cast<Collectives*>(&one_shot), static_cast<Collectives*>(&two_shot),
                static_cast<Collectives*>(&over_rings)}) {
            Elements data = testing::ContributionOf(dtype, rank, count);
            ExpectOk(collectives->Allreduce(data.data(), count, reduction));
            results.push_back(data.bytes);
          }
          EXPECT_TRUE(results[0] == results[1] && results[0] == results[2])
              << ReduceOpName(op) << " of " << count << " " << DataTypeName(dtype);
        }
      }
    }
  });
}

}  // namespace
}  // namespace mydist::shm
