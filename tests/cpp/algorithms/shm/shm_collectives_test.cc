// Collectives in shared memory: the conformance suites, and bits equal to those over transports.
#include "algorithms/shm/shm_collectives.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "algorithms/shm/shm_ranks.h"
#include "conformance/adasum_suite.h"
#include "conformance/collectives_suite.h"
#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"
#include "conformance/rooted_suite.h"

namespace mydist::shm {
namespace {

using testing::Elements;
using testing::ExpectOk;
using testing::Rank;

void OnThreads(int size, const std::function<void(const Rank&)>& body,
               int64_t slot_bytes = kSmallSlot) {
  OnThreadsWithPort(size, slot_bytes, [&](ShmPort& port, int rank) {
    ShmCollectives collectives(&port, AllOf(size));
    body({rank, size, &collectives});
  });
}

void CheckEverything(const Rank& me) {
  testing::CheckMovingCollectives(me);
  testing::CheckMovingRooted(me);
  for (const DataType dtype : testing::kTypesOfEveryKind) {
    testing::CheckReducingCollectives(me, dtype);
    testing::CheckReducingRooted(me, dtype);
    if (HasMeaning(ReduceOp::kAdasum, dtype)) testing::RunAdasumConformance(me, dtype);
  }
}

class ShmRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShmRanks, ::testing::ValuesIn(Ranks(1)));

TEST_P(ShmRanks, MoveAsTheyShould) {
  OnThreads(GetParam(), [](const Rank& me) {
    testing::CheckMovingCollectives(me);
    testing::CheckMovingRooted(me);
  });
}

TEST_P(ShmRanks, ConformAsProcesses) {
  const int size = GetParam();
  OnProcessesWithPort(size, [&](ShmPort& port, int rank) {
    ShmCollectives collectives(&port, AllOf(size));
    CheckEverything({rank, size, &collectives});
  });
}

TEST_P(ShmRanks, BarrierHoldsBackUntilAllHaveCome) {
  std::atomic<int> arrived = 0;
  OnThreads(GetParam(), [&](const Rank& me) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      ExpectOk(me.collectives->Barrier());
      EXPECT_GE(arrived.load(), round * me.size);
    }
  });
}

class ShmReductions : public ::testing::TestWithParam<std::tuple<int, DataType>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  DataType dtype() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(RanksAndTypes, ShmReductions,
                         ::testing::Combine(::testing::ValuesIn(Ranks(1)),
                                            ::testing::ValuesIn(testing::TypesToTry())),
                         [](const auto& instance) {
                           return std::to_string(std::get<0>(instance.param)) + "ranks_" +
                                  std::string(DataTypeName(std::get<1>(instance.param)));
                         });

TEST_P(ShmReductions, Conform) {
  OnThreads(size(), [&](const Rank& me) {
    testing::CheckReducingCollectives(me, dtype());
    testing::CheckReducingRooted(me, dtype());
  });
}

// One step, many steps, and the rank-ordered algorithms over the rings.
TEST_P(ShmReductions, AlgorithmsAgreeBitwise) {
  OnThreadsWithPort(size(), kSmallSlot, [&](ShmPort& port, int rank) {
    ShmCollectives one_shot(&port, AllOf(size()), {.one_shot_bytes = int64_t{1} << 40});
    ShmCollectives two_shot(&port, AllOf(size()), {.one_shot_bytes = 0});
    RankOrderedCollectives over_rings(&port.transport());
    for (const ReduceOp op : testing::ReduceOpsOf(dtype())) {
      const Reduction reduction = Reduction{.dtype = dtype(), .op = op}.Resolved(size());
      for (const int64_t count : {1, 63, 509, 5003}) {
        std::vector<std::vector<uint8_t>> results;
        for (Collectives* collectives :
             {static_cast<Collectives*>(&one_shot), static_cast<Collectives*>(&two_shot),
              static_cast<Collectives*>(&over_rings)}) {
          Elements data = testing::ContributionOf(dtype(), rank, count);
          ExpectOk(collectives->Allreduce(data.data(), count, reduction));
          results.push_back(data.bytes);
        }
        EXPECT_TRUE(results[0] == results[1]) << ReduceOpName(op) << " of " << count;
        EXPECT_TRUE(results[0] == results[2]) << ReduceOpName(op) << " of " << count;
      }
    }
  });
}

// All ranks draw the same sets and sizes, and each takes part where it is a member: a slot is used
// again by another set than the one that read it last.
TEST(ShmSets, OverlapInAnyOrder) {
  constexpr int kSize = 4;
  OnThreadsWithPort(kSize, kSmallSlot, [](ShmPort& port, int rank) {
    std::mt19937 random(4711);
    for (int round = 0; round < 400; ++round) {
      std::vector<int> members;
      while (members.size() < 2) {
        members.clear();
        const uint32_t bits = random();
        for (int member = 0; member < kSize; ++member) {
          if ((bits >> member) % 2 == 1) members.push_back(member);
        }
      }
      const auto count = static_cast<int64_t>(random() % (round % 4 == 0 ? 9000 : 300));
      const auto own = std::find(members.begin(), members.end(), rank);
      if (own == members.end()) continue;
      ShmCollectives collectives(&port, members);
      const Rank me{static_cast<int>(own - members.begin()), static_cast<int>(members.size()),
                    &collectives};
      std::vector<int64_t> data(static_cast<size_t>(count), 1 << rank);
      ExpectOk(collectives.Allreduce(data.data(), count, {.dtype = DataType::kInt64}));
      int64_t sum = 0;
      for (const int member : members) sum += 1 << member;
      EXPECT_EQ(data, std::vector<int64_t>(static_cast<size_t>(count), sum));
      testing::CheckBroadcast(me, count);
      testing::CheckAllgather(me, testing::UnevenCounts(me.size, count, 1), false);
    }
  });
}

// What a rank does to its tensors right after a collective does not reach the others.
TEST(ShmSets, BuffersMayBeRewrittenAtOnce) {
  OnThreads(3, [](const Rank& me) {
    std::vector<float> data(20000);
    for (int round = 0; round < 200; ++round) {
      const auto value = static_cast<float>(round * (me.rank + 1));
      const auto count = static_cast<int64_t>(1 + round * 97 % 20000);
      std::fill(data.begin(), data.end(), value);
      ExpectOk(me.collectives->Allreduce(data.data(), count, {}));
      const auto wrong = std::find_if(data.begin(), data.begin() + count, [&](float element) {
        return element != static_cast<float>(round * 6);
      });
      EXPECT_EQ(wrong - data.begin(), count);
    }
  });
}

}  // namespace
}  // namespace mydist::shm
