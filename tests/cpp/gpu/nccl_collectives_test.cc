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
using testing::ExpectFine;
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
    ExpectFine(rank.communicator.Open());  // Transfers between two ranks need it.
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
    ExpectFine(rank.me.collectives->Allreduce(everywhere.data(), count, resolved));
    testing::ExpectSameOnAllRanks(rank.me, everywhere.bytes);
    testing::ExpectOurShareReduced(rank.me, everywhere, inputs, reduction);

    Elements input = own;
    Elements at_root(dtype, count, testing::kPoison);
    ExpectFine(rank.me.collectives->Reduce(input.data(), at_root.data(), count, resolved, 0));
    if (rank.rank == 0) EXPECT_EQ(at_root.bytes, everywhere.bytes);
    EXPECT_TRUE(input.bytes == own.bytes) << "input was changed";

    Elements share(dtype, counts[static_cast<size_t>(rank.rank)], testing::kPoison);
    ExpectFine(rank.me.collectives->Reducescatter(input.data(), share.data(), counts, resolved));
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
      ExpectFine(rank.me.collectives->Allgather(output.data(), parts.data(), counts));
      ExpectFine(rank.me.collectives->Reducescatter(parts.data(), output.data(), counts,
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

// Several tensors on the device, each with a copy on the host.
struct DeviceTensors {
  std::vector<std::shared_ptr<uint8_t>> inputs;
  std::vector<std::shared_ptr<uint8_t>> outputs;
  std::vector<BatchTensor> tensors;
};

DeviceTensors TensorsOf(const NcclRank& rank, DataType dtype, const std::vector<int64_t>& counts,
                        bool in_place) {
  DeviceTensors on_device;
  for (size_t i = 0; i < counts.size(); ++i) {
    const Elements own = testing::ContributionOf(dtype, rank.rank, counts[i], i);
    const auto bytes = static_cast<int64_t>(own.bytes.size());
    auto input = ValueOf(rank.device.Allocate(bytes));
    auto output = in_place ? input : ValueOf(rank.device.Allocate(bytes));
    if (bytes > 0) {
      auto pinned = ValueOf(rank.device.AllocatePinned(bytes));
      ExpectFine(rank.device.HostWrites(pinned.get(), bytes, "the test"));
      std::copy(own.bytes.begin(), own.bytes.end(), pinned.get());
      ExpectFine(rank.device.Copy(input.get(), pinned.get(), bytes, rank.stream));
      ExpectFine(rank.device.Block(*ValueOf(rank.device.Record(rank.stream))));
    }
    on_device.tensors.push_back({input.get(), output.get(), counts[i]});
    on_device.inputs.push_back(std::move(input));
    on_device.outputs.push_back(std::move(output));
  }
  return on_device;
}

Elements FromDevice(const NcclRank& rank, const void* memory, DataType dtype, int64_t count) {
  Elements elements(dtype, count);
  const auto bytes = static_cast<int64_t>(elements.bytes.size());
  if (bytes == 0) return elements;
  auto pinned = ValueOf(rank.device.AllocatePinned(bytes));
  ExpectFine(rank.device.Copy(pinned.get(), memory, bytes, rank.stream));
  ExpectFine(rank.device.Block(*ValueOf(rank.device.Record(rank.stream))));
  ExpectFine(rank.device.HostReads(pinned.get(), bytes, "the test"));
  std::copy(pinned.get(), pinned.get() + bytes, elements.bytes.begin());
  return elements;
}

void CheckAllreduceEach(const NcclRank& rank, const Reduction& reduction, bool in_place) {
  const std::vector<int64_t> counts = {7, 0, 1000, 1};
  const DeviceTensors on_device = TensorsOf(rank, reduction.dtype, counts, in_place);
  const int64_t blocks = rank.device.counts().blocks;
  ExpectFine(rank.collectives.AllreduceEach(on_device.tensors, reduction.Resolved(rank.size)));
  EXPECT_EQ(rank.device.counts().blocks, blocks) << "the host has waited for the device";
  for (size_t i = 0; i < counts.size(); ++i) {
    const BatchTensor& tensor = on_device.tensors[i];
    const auto inputs = testing::ContributionsOf(reduction.dtype, rank.size, counts[i], i);
    const Elements got = FromDevice(rank, tensor.output, reduction.dtype, counts[i]);
    testing::ExpectReduced(got, inputs, reduction, 0, rank.me.rounding);
    if (in_place) continue;
    const Elements after = FromDevice(rank, tensor.input, reduction.dtype, counts[i]);
    EXPECT_TRUE(after.bytes == inputs[static_cast<size_t>(rank.rank)].bytes) << "input changed";
  }
}

TEST(NcclGroup, ReducesSeveralTensorsInOneLaunch) {
  for (const Reduction& reduction :
       {Reduction{.op = ReduceOp::kAverage}, Reduction{.prescale = 0.5, .postscale = 4.0},
        Reduction{.dtype = DataType::kInt32, .op = ReduceOp::kAverage, .prescale = 0.5}}) {
    for (const bool in_place : {true, false}) {
      NcclRanks ranks(3);
      ranks.Run([&](const NcclRank& rank) { CheckAllreduceEach(rank, reduction, in_place); });
      EXPECT_EQ(ranks.nccl().groups(), 3);
      EXPECT_EQ(ranks.nccl().calls().size(), 9u) << "one of the four tensors is empty";
    }
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
    for (const int32_t elsewhere : {-1, rank.device.index() + 1}) {
      traits.device = elsewhere;
      EXPECT_FALSE(rank.collectives.Supports(traits));
    }
  });
}

// Which NCCL moves as bytes.
TEST(NcclSupport, OfFloat8IsMovingIt) {
  NcclRanks ranks(2);
  ranks.Run([](const NcclRank& rank) {
    ExpectFine(rank.collectives.Broadcast(nullptr, 0, 0));  // For transfers between two ranks.
    for (const DataType dtype : {DataType::kFloat8E4m3, DataType::kFloat8E5m2}) {
      SCOPED_TRACE(DataTypeName(dtype));
      BatchTraits traits{.dtype = dtype, .device = rank.device.index(), .bytes = 100};
      for (const OpKind op : {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kAlltoall,
                              OpKind::kGather, OpKind::kScatter, OpKind::kSendReceive}) {
        traits.op = op;
        EXPECT_TRUE(rank.collectives.Supports(traits)) << OpKindName(op);
      }
      for (const OpKind op : {OpKind::kAllreduce, OpKind::kReducescatter, OpKind::kReduce}) {
        traits.op = op;
        for (const ReduceOp reduce_op : testing::kAllReduceOps) {
          traits.reduce_op = reduce_op;
          EXPECT_FALSE(rank.collectives.Supports(traits)) << OpKindName(op);
        }
      }
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
    ExpectFine(rank.collectives.Broadcast(nullptr, 0, 0));
    EXPECT_TRUE(rank.collectives.Supports(traits));
    testing::CheckSendAndReceive(rank.me, 100);
  });
}

TEST(NcclSupport, RefusesWhatItDoesNotSupport) {
  NcclRanks ranks(1);
  ranks.Run([](const NcclRank& rank) {
    const Status status =
        rank.collectives.Allreduce(nullptr, 0, {.dtype = DataType::kInt16, .op = ReduceOp::kMin});
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("allreduce by Min of int16"));
    EXPECT_EQ(rank.collectives.AdasumAllreduce(nullptr, {}, {}).code(), StatusCode::kInternal);
  });
}

TEST(NcclBarrier, HoldsTheHostUntilAllAreThere) {
  NcclRanks ranks(4);
  std::atomic<int> there = 0;
  ranks.Run([&](const NcclRank& rank) {
    for (int round = 1; round <= 20; ++round) {
      ++there;
      ExpectFine(rank.collectives.Barrier());
      EXPECT_GE(there.load(), 4 * round);
    }
  });
}

// Rank 1 stays away from what rank 0 calls, until rank 0 has given up.
void Desert(NcclRanks& ranks, const std::function<void(const NcclRank&)>& hang) {
  ranks.Run([&](const NcclRank& rank) {
    ExpectFine(rank.communicator.Open());
    if (rank.rank == 0) {
      std::thread other([&] {
        ranks.nccl().AwaitRunning(1);
        rank.communicator.Abort(Why());
      });
      hang(rank);
      other.join();
    }
    ExpectFine(rank.host.Barrier());
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
    ExpectFine(rank.device.Block(*over));
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
    ExpectFine(connection.collectives->Allreduce(memory.get(), 100, {}));
    ExpectFine(connection.link->Check());
    ExpectFine(connection.link->Close(kNever, nullptr));
    const Status late = connection.collectives->Allreduce(memory.get(), 100, {});
    EXPECT_EQ(late.code(), StatusCode::kAborted);
    EXPECT_THAT(late.message(), HasSubstr("the ranks"));
    ExpectFine(rank.device.Block(*ValueOf(rank.device.Record(rank.stream))));
  });
}

TEST(NcclConnection, ABarrierEndsWhenAPeerIsLost) {
  NcclRanks ranks(2);
  ranks.Run([&](const NcclRank& rank) {
    const auto has_gone = [&] { return ranks.nccl().running() == 0 ? Status::Ok() : Why(); };
    DeviceConnection connection =
        ConnectNccl(&ranks.nccl().api(), {.seat = {&rank.device, rank.stream, has_gone},
                                          .rank = rank.rank,
                                          .size = 2,
                                          .name = "the ranks",
                                          .exchange = &rank.host});
    const auto memory = ValueOf(rank.device.Allocate(4));
    ExpectFine(connection.collectives->Broadcast(memory.get(), 0, 0));  // It opens.
    ExpectFine(rank.host.Barrier());  // So has the other, which has_gone would stop from now on.
    if (rank.rank == 0) {
      EXPECT_EQ(connection.collectives->Barrier().ToString(), Why().ToString());
      connection.link->Abort(Why());
    }
    ExpectFine(rank.host.Barrier());
    connection.link->Abort(Why());
    ExpectFine(rank.device.Block(*ValueOf(rank.device.Record(rank.stream))));
  });
}

TEST(NcclFailure, NamesWhatWasCalled) {
  NcclRanks ranks(2, Pace::kRandom, {.launch_polls = 1});
  ranks.Run([&](const NcclRank& rank) {
    ExpectFine(rank.communicator.Open());
    ExpectFine(rank.host.Barrier());
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
        ExpectFine(rank.collectives.Reduce(input.get(), output.get(), count, reduction, 0));
        ExpectFine(rank.collectives.Reducescatter(
            input.get(), output.get(), std::vector<int64_t>{count / 2, count - count / 2},
            reduction));
      }
      EXPECT_EQ(rank.device.counts().blocks, 0);
      ExpectFine(rank.device.Block(*ValueOf(rank.device.Record(rank.stream))));
    });
  }
}

}  // namespace
}  // namespace mydist
