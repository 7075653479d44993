// Staged collectives do what all others do, at every pace of the device, with the same bits.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/device/staged_ranks.h"
#include "algorithms/host_ranks.h"
#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"

namespace mydist::testing {
namespace {

class StagedConformance : public ::testing::TestWithParam<std::tuple<int, FakeDeviceOptions>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  FakeDeviceOptions options() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(
    RanksAndPaces, StagedConformance,
    ::testing::Combine(::testing::ValuesIn(Ranks(1, 4)), kEveryPace), [](const auto& instance) {
      const FakeDeviceOptions options = std::get<1>(instance.param);
      return std::to_string(std::get<0>(instance.param)) + "ranks_" + NameOfPace({options, 0});
    });

TEST_P(StagedConformance, Conforms) {
  OnStagedRanks(size(), options(), kSmallChunks, CheckEveryCollective);
}

TEST_P(StagedConformance, ConformsWithTheUsualChunks) {
  OnStagedRanks(size(), options(), {}, [](const Rank& me) {
    CheckMovingCollectives(me);
    CheckMovingRooted(me);
    CheckReducingCollectives(me, DataType::kFloat32);
  });
}

TEST_P(StagedConformance, BarrierHoldsBackUntilAllHaveCome) {
  std::atomic<int> arrived = 0;
  OnStagedRanks(size(), options(), kSmallChunks,
                [&](const Rank& me) { CheckBarrier(me, arrived); });
}

// `staged` and `direct` give the same bits, whole or in chunks.
void ExpectSameBits(int rank, Collectives& staged, Collectives& direct, int size) {
  for (const DataType dtype : kTypesOfEveryKind) {
    for (const ReduceOp op : ReduceOpsOf(dtype)) {
      Reduction reduction = Reduction{.dtype = dtype, .op = op}.Resolved(size);
      reduction.prescale = 0.75;
      for (const int64_t count : {1, 63, 5003, 20011}) {
        Elements in_chunks = ContributionOf(dtype, rank, count);
        Elements whole = in_chunks;
        ExpectOk(staged.Allreduce(in_chunks.data(), count, reduction));
        ExpectOk(direct.Allreduce(whole.data(), count, reduction));
        EXPECT_TRUE(in_chunks.bytes == whole.bytes)
            << ReduceOpName(op) << " of " << count << " " << DataTypeName(dtype);
      }
    }
  }
}

TEST(StagedBits, AreThoseOfTheInnerOnTheWhole) {
  OnFakeDevices(3, {}, [](const StagedRank& rank) {
    RankOrderedCollectives direct(rank.connection->transport.get());
    StagedCollectives staged(rank.rank, rank.Inner(),
                             OpenPipeline(rank.device, rank.stream, kSmallChunks));
    ThroughDevice through(rank.device, rank.stream, rank.rank, &staged);
    ExpectSameBits(rank.rank, through, direct, rank.size);
  });
}

TEST(StagedBits, AreThoseOfAHierarchyOnTheWhole) {
  constexpr HierarchicalLimits kSmallLimits{.one_slice_bytes = 64, .chunk_bytes = 4096};
  OnHosts("aabbb", [&](const HostRank& host) {
    FakeDevice device({.seed = static_cast<uint64_t>(host.rank)});
    const StreamHandle stream = ValueOf(device.CreateStream());
    auto inner =
        std::make_unique<Hierarchical>(host.groups, host.meter, host.SharedMemory(), kSmallLimits);
    Hierarchical direct(host.groups, host.meter, nullptr, {});
    StagedCollectives staged(
        host.rank, std::make_unique<NotedCollectives>(&device, host.rank, std::move(inner)),
        OpenPipeline(&device, stream, kSmallChunks));
    ThroughDevice through(&device, stream, host.rank, &staged);
    ExpectSameBits(host.rank, through, direct, host.size());
    CheckMovingCollectives(host.With(&through));
  });
}

// What a job on one host has: bytes between ranks pass through memory that they share.
TEST(StagedInner, MayShareMemoryBetweenRanks) {
  OnHosts("aaa", [&](const HostRank& host) {
    FakeDevice device({.seed = static_cast<uint64_t>(host.rank)});
    const StreamHandle stream = ValueOf(device.CreateStream());
    StagedCollectives staged(
        host.rank, std::make_unique<NotedCollectives>(&device, host.rank, host.SharedMemory()),
        OpenPipeline(&device, stream, kSmallChunks));
    ThroughDevice through(&device, stream, host.rank, &staged);
    CheckMovingCollectives(host.With(&through));
    CheckReducingCollectives(host.With(&through), DataType::kFloat32);
  });
}

// As two processes with one GPU do.
TEST(StagedInner, RanksMayShareADevice) {
  FakeDevice device;
  OnEveryRank(2, [&](Connection& connection) {
    const StreamHandle stream = ValueOf(device.CreateStream());
    const StagedRank rank{connection.rank, connection.size, &connection, &device, stream};
    StagedCollectives staged(rank.rank, rank.Inner(), OpenPipeline(&device, stream, kSmallChunks));
    ThroughDevice through(&device, stream, rank.rank, &staged);
    const Rank me{rank.rank, rank.size, &through};
    CheckMovingRooted(me);
    CheckReducingRooted(me, DataType::kBfloat16);
  });
}

}  // namespace
}  // namespace mydist::testing
