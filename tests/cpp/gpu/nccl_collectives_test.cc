// All collectives over NCCL on device memory: the conformance suites, scales and averages, how many
// calls and kernels it takes, and the end of what hangs.
#include "gpu/nccl_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"
#include "conformance/rooted_suite.h"
#include "gpu/nccl_ranks.h"

namespace mydist {
namespace {

using testing::Elements;
using testing::FakeNcclCall;
using ::testing::HasSubstr;
using testing::NcclRank;
using testing::NcclRanks;
using testing::Pace;
using testing::ValueOf;
using Kind = FakeNcclCall::Kind;

constexpr DataType kReducedTypes[] = {
    DataType::kUint8,   DataType::kInt8,      DataType::kInt32,     DataType::kInt64,
    DataType::kFloat16, DataType::kBfloat16,  DataType::kFloat32,   DataType::kFloat64,
    DataType::kBool,    DataType::kComplex64, DataType::kComplex128};

Status Why() { return Status::PeerLost("rank 3 was killed"); }

class NcclConformance : public ::testing::TestWithParam<std::tuple<int, Pace>> {
 protected:
  // Where a stream is lazy, only the order of things is another.
  std::span<const DataType> types() const {
    if (std::get<1>(GetParam()) == Pace::kLazy) return testing::kTypesOfEveryKind;
    return kReducedTypes;
  }

  NcclRanks ranks_{std::get<0>(GetParam()), std::get<1>(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Ranks, NcclConformance,
                         ::testing::Combine(::testing::ValuesIn(Ranks(1, 4)),
                                            ::testing::Values(Pace::kRandom, Pace::kLazy)));

TEST_P(NcclConformance, MovesBytes) {
  ranks_.Run([](const NcclRank& rank) { testing::CheckMovingCollectives(rank.me); });
}

TEST_P(NcclConformance, MovesBytesOfOneRank) {
  ranks_.Run([](const NcclRank& rank) {
    ExpectOk(rank.communicator.Open());  // Transfers between two ranks need it.
    testing::CheckMovingRooted(rank.me);
  });
}

TEST_P(NcclConformance, ReducesAllTypes) {
  ranks_.Run([&](const NcclRank& rank) {
    for (const DataType dtype : types()) testing::CheckReducingCollectives(rank.me, dtype);
  });
}

TEST_P(NcclConformance, ReducesToOneRank) {
  ranks_.Run([&](const NcclRank& rank) {
    for (const DataType dtype : types()) {
      for (const int64_t count : {0, 1, 1003}) testing::CheckReduce(rank.me, dtype, count);
    }
  });
}

// Factors of every size, before and after, with every operation they may come with.
std::vector<Reduction> ScalingReductions(DataType dtype) {
  std::vector<Reduction> reductions;
  for (const ReduceOp op : testing::kAllReduceOps) {
    if (!NcclReduces(op, dtype)) continue;
    for (const auto& [prescale, postscale] : std::vector<std::pair<double, double>>{
             {0.5, 1.0}, {1.0, 0.3}, {1.0, 3.0}, {0.25, 2.5}, {1e-6, 1e6}, {-1.0, 1.0}}) {
      reductions.push_back(
          {.dtype = dtype, .op = op, .prescale = prescale, .postscale = postscale});
    }
  }
  return reductions;
}

// The range of float16 is too small for what others stand.
bool Fits(const Reduction& reduction) {
  return reduction.dtype != DataType::kFloat16 || reduction.prescale > 1e-3 ||
         reduction.prescale < 0;
}

void CheckScales(const NcclRank& rank, DataType dtype, int64_t count) {
  const std::vector<Elements> inputs = testing::ContributionsOf(dtype, rank.size, count);
  const Elements& own = inputs[static_cast<size_t>(rank.rank)];
  const std::vector<int64_t> counts = testing::UnevenCounts(rank.size, count / rank.size, 3);
  const std::span<const int64_t> before_ours(counts.data(), static_cast<size_t>(rank.rank));
  const int64_t offset = std::accumulate(before_ours.begin(), before_ours.end(), int64_t{0});
  for (const Reduction& reduction : ScalingReductions(dtype)) {
    if (!Fits(reduction)) continue;
    const Reduction resolved = reduction.Resolved(rank.size);
    Elements everywhere = own;
    ExpectOk(rank.me.collectives->Allreduce(everywhere.data(), count, resolved));
    testing::ExpectSameOnAllRanks(rank.me, everywhere.bytes);
    testing::ExpectOurShareReduced(rank.me, everywhere, inputs, reduction);

    Elements input = own;
    Elements at_root(dtype, count, testing::kPoison);
    ExpectOk(rank.me.collectives->Reduce(input.data(), at_root.data(), count, resolved, 0));
    if (rank.rank == 0) EXPECT_EQ(at_root.bytes, everywhere.bytes);
    EXPECT_TRUE(input.bytes == own.bytes) << "input was changed";

    Elements share(dtype, counts[static_cast<size_t>(rank.rank)], testing::kPoison);
    ExpectOk(rank.me.collectives->Reducescatter(input.data(), share.data(), counts, resolved));
    testing::ExpectReduced(share, inputs, reduction, offset, rank.me.rounding);
    EXPECT_TRUE(input.bytes == own.bytes) << "input was changed";
  }
}

TEST_P(NcclConformance, ScalesBeforeAndAfter) {
  ranks_.Run([&](const NcclRank& rank) {
    for (const DataType dtype : types()) {
      if (dtype != DataType::kBool) CheckScales(rank, dtype, 1003);
    }
  });
}

TEST(NcclEffort, OfPartsOfOneSizeIsOneCall) {
  for (const bool even : {true, false}) {
    NcclRanks ranks(3);
    ranks.Run([&](const NcclRank& rank) {
      const std::vector<int64_t> counts = {4, 4, even ? 4 : 5};
      Elements parts(DataType::kUint8, 13);
      Elements output(DataType::kUint8, counts[static_cast<size_t>(rank.rank)]);
      ExpectOk(rank.me.collectives->Allgather(output.data(), parts.data(), counts));
      ExpectOk(rank.me.collectives->Reducescatter(parts.data(), output.data(), counts,
                                                  {.dtype = DataType::kUint8}));
    });
    std::multiset<Kind> kinds;
    for (const FakeNcclCall& call : ranks.nccl().calls()) kinds.insert(call.kind);
    EXPECT_EQ(kinds.count(Kind::kAllGather), even ? 3u : 0u);
    EXPECT_EQ(kinds.count(Kind::kReduceScatter), even ? 3u : 0u);
    EXPECT_EQ(kinds.count(Kind::kBroadcast), even ? 0u : 9u);
    EXPECT_EQ(kinds.count(Kind::kReduce), even ? 0u : 9u);
    EXPECT_EQ(ranks.nccl().groups(), 6) << "two launches on each rank";
  }
}

TEST(NcclSupport, IsForTheDeviceAndWhatNcclReduces) {
  NcclRanks ranks(2);
  ranks.Run([](const NcclRank& rank) {
    BatchTraits traits{.op = OpKind::kAllreduce,
                       .dtype = DataType::kFloat32,
                       .reduce_op = ReduceOp::kSum,
                       .device = rank.device.index(),
                       .bytes = 100};
    EXPECT_TRUE(rank.collectives.Supports(traits));
    traits.reduce_op = ReduceOp::kAdasum;
    EXPECT_FALSE(rank.collectives.Supports(traits));
    traits.reduce_op = ReduceOp::kSum;
    traits.dtype = DataType::kInt16;
    EXPECT_FALSE(rank.collectives.Supports(traits));
    traits.op = OpKind::kAllgather;
    EXPECT_TRUE(rank.collectives.Supports(traits)) << "bytes are bytes";
    traits.dtype = DataType::kFloat8E4m3;
    EXPECT_TRUE(rank.collectives.Supports(traits));
    for (const int32_t elsewhere : {-1, rank.device.index() + 1}) {
      traits.device = elsewhere;
      EXPECT_FALSE(rank.collectives.Supports(traits));
    }
  });
}

// It takes all ranks to make a communicator, but only two to send and receive.
TEST(NcclSupport, OfTransfersBeginsWithTheFirstCollective) {
  NcclRanks ranks(3);
  ranks.Run([](const NcclRank& rank) {
    const BatchTraits traits{.op = OpKind::kSendReceive,
                             .dtype = DataType::kFloat32,
                             .reduce_op = ReduceOp::kSum,
                             .device = rank.device.index(),
                             .bytes = 100};
    EXPECT_FALSE(rank.collectives.Supports(traits));
    ExpectOk(rank.collectives.Broadcast(nullptr, 0, 0));
    EXPECT_TRUE(rank.collectives.Supports(traits));
    testing::CheckSendAndReceive(rank.me, 100);
  });
}

TEST(NcclSupport, RefusesWhatItDoesNotSupport) {
  NcclRanks ranks(1);
  ranks.Run([](const NcclRank& rank) {
    const Status status =
        rank.collectives.Allreduce(nullptr, 0, {.dtype = DataType::kInt16, .op = ReduceOp::kMin});
    ExpectError(status, StatusCode::kInternal, {"allreduce by Min of int16"});
    EXPECT_EQ(rank.collectives.AdasumAllreduce(nullptr, {}, {}).code(), StatusCode::kInternal);
  });
}

TEST(NcclBarrier, HoldsTheHostUntilAllAreThere) {
  NcclRanks ranks(4);
  std::atomic<int> there = 0;
  ranks.Run([&](const NcclRank& rank) {
    for (int round = 1; round <= 20; ++round) {
      ++there;
      ExpectOk(rank.collectives.Barrier());
      EXPECT_GE(there.load(), 4 * round);
    }
  });
}

// Rank 1 stays away from what rank 0 calls, until rank 0 has given up.
void Desert(NcclRanks& ranks, const std::function<void(const NcclRank&)>& hang) {
  ranks.Run([&](const NcclRank& rank) {
    ExpectOk(rank.communicator.Open());
    if (rank.rank == 0) {
      std::thread other([&] {
        ranks.nccl().AwaitRunning(1);
        rank.communicator.Abort(Why());
      });
      hang(rank);
      other.join();
    }
    ExpectOk(rank.host.Barrier());
    rank.communicator.Abort(Why());
  });
  EXPECT_EQ(ranks.nccl().aborts(), 2);
}

TEST(NcclAbort, EndsAHangingBarrier) {
  NcclRanks ranks(2);
  Desert(ranks, [](const NcclRank& rank) {
    EXPECT_EQ(rank.collectives.Barrier().ToString(), Why().ToString());
  });
}

TEST(NcclAbort, EndsAHangingCollectiveOnTheStream) {
  NcclRanks ranks(2);
  Desert(ranks, [](const NcclRank& rank) {
    const auto memory = ValueOf(rank.device.Allocate(400));
    // What is on the stream may be ended before the call that has put it there returns.
    const Status called = rank.collectives.Allreduce(memory.get(), 100, {});
    EXPECT_TRUE(called.ok() || called.ToString() == Why().ToString()) << called.ToString();
    const EventPointer over = ValueOf(rank.device.Record(rank.stream));
    ExpectOk(rank.device.Block(*over));
    EXPECT_EQ(rank.collectives.Allreduce(memory.get(), 100, {}).ToString(), Why().ToString());
  });
}

// As a plugin makes them.
TEST(NcclConnection, HasALinkThatOutlivesTheCalls) {
  NcclRanks ranks(2);
  ranks.Run([&](const NcclRank& rank) {
    DeviceConnection connection =
        ConnectNccl(&ranks.nccl().api(), {.seat = {&rank.device, rank.stream},
                                          .rank = rank.rank,
                                          .size = 2,
                                          .name = "the ranks",
                                          .exchange = &rank.host});
    const auto memory = ValueOf(rank.device.Allocate(400));
    ExpectOk(connection.collectives->Allreduce(memory.get(), 100, {}));
    ExpectOk(connection.link->Check());
    ExpectOk(connection.link->Close(kNever, nullptr));
    const Status late = connection.collectives->Allreduce(memory.get(), 100, {});
    ExpectError(late, StatusCode::kAborted, {"the ranks"});
    ExpectOk(rank.device.Block(*ValueOf(rank.device.Record(rank.stream))));
  });
}

TEST(NcclFailure, NamesWhatWasCalled) {
  NcclRanks ranks(2, Pace::kRandom, {.launch_polls = 1});
  ranks.Run([&](const NcclRank& rank) {
    ExpectOk(rank.communicator.Open());
    ExpectOk(rank.host.Barrier());
    ranks.nccl().FailAsync(rank.rank, nccl::Outcome::kRemoteError, "socket closed by peer");
    const auto memory = ValueOf(rank.device.Allocate(400));
    const Status status = rank.collectives.Reduce(memory.get(), memory.get(), 100, {}, rank.rank);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    for (const std::string& part :
         {std::string("NCCL failed in reduce of process set 7"),
          "device " + std::to_string(rank.rank), std::string("socket closed by peer")}) {
      EXPECT_THAT(status.message(), HasSubstr(part));
    }
  });
}

// Memory that the stream may still use is not given back.
TEST(NcclScratch, GrowsWithoutWaiting) {
  for (const Pace pace : {Pace::kLazy, Pace::kRandom}) {
    NcclRanks ranks(2, pace);
    ranks.Run([](const NcclRank& rank) {
      const int64_t most = 5000;
      const auto input = ValueOf(rank.device.Allocate(most));
      const auto output = ValueOf(rank.device.Allocate(most));
      const Reduction reduction{.dtype = DataType::kInt8, .prescale = 0.5};
      for (const int64_t count : {int64_t{1}, int64_t{10}, int64_t{5}, most, int64_t{700}}) {
        ExpectOk(rank.collectives.Reduce(input.get(), output.get(), count, reduction, 0));
        ExpectOk(rank.collectives.Reducescatter(input.get(), output.get(),
                                                std::vector<int64_t>{count / 2, count - count / 2},
                                                reduction));
      }
      EXPECT_EQ(rank.device.counts().blocks, 0);
      ExpectOk(rank.device.Block(*ValueOf(rank.device.Record(rank.stream))));
    });
  }
}

}  // namespace
}  // namespace mydist
