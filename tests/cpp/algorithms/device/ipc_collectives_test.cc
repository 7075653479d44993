// Collectives by the kernel between GPUs of a host: they do what all others do, with the bits of
// the host, and fail, close and connect on all ranks alike.
#include "algorithms/device/ipc_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "algorithms/device/ipc_ranks.h"
#include "algorithms/device/through_device.h"

namespace mydist::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class IpcConformance : public ::testing::TestWithParam<std::tuple<int, FakeDeviceOptions>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }

  // The suites' tensors are copied to the device and back; the host never waits for it.
  void Run(const std::function<void(const Rank&, Collectives& host)>& body) {
    FakeIpcHost host;
    OnIpcRanks(size(), host, std::get<1>(GetParam()), [&](const IpcRank& rank) {
      const std::shared_ptr<IpcLink> link = rank.Link();
      IpcCollectives collectives(link, kIpcHalfBytes);
      ThroughDevice through(&rank.device, rank.stream, rank.rank, &collectives,
                            ThroughDevice::HostBlocks::kNever);
      WithAllreduceOf all(&through, &rank.host);
      body({rank.rank, rank.size, &all, FoldsOnDevice}, rank.host);
      ExpectFine(link->Close(kNever, nullptr));
    });
    EXPECT_EQ(host.board_count(), size());
    EXPECT_EQ(host.open_count(), 0);
  }
};
INSTANTIATE_TEST_SUITE_P(
    RanksAndPaces, IpcConformance, ::testing::Combine(::testing::Values(2, 3, 8), kEveryPace),
    [](const auto& instance) {
      const FakeDeviceOptions options = std::get<1>(instance.param);
      return std::to_string(std::get<0>(instance.param)) + "ranks_" + NameOfPace({options, 0});
    });

TEST_P(IpcConformance, Reduces) {
  Run([](const Rank& me, Collectives&) {
    for (const DataType dtype : {DataType::kInt64, DataType::kBfloat16, DataType::kFloat32}) {
      for (const int64_t count : {0, 1, 2050}) CheckAllreduce(me, dtype, count);
    }
  });
}

TEST_P(IpcConformance, HasTheBitsOfTheHost) {
  Run([](const Rank& me, Collectives& host) {
    for (const DataType dtype : kAllDataTypes) {
      Reduction reduction = Reduction{.dtype = dtype, .op = ReduceOp::kSum};
      if (dtype != DataType::kBool) reduction.prescale = 0.3;
      Elements on_device = ContributionOf(dtype, me.rank, 3001);
      Elements on_host = on_device;
      ExpectOk(me.collectives->Allreduce(on_device.data(), 3001, reduction));
      ExpectOk(host.Allreduce(on_host.data(), 3001, reduction));
      EXPECT_TRUE(on_device.bytes == on_host.bytes) << DataTypeName(dtype);
    }
  });
}

// One that is cut in pieces, each in two shots where there are more than two ranks.
TEST(IpcPieces, MakeALargeTensor) {
  for (const int size : {2, 3}) {
    FakeIpcHost host;
    OnIpcRanks(size, host, {}, [&](const IpcRank& rank) {
      const std::shared_ptr<IpcLink> link = rank.Link();
      IpcCollectives collectives(link, kIpcHalfBytes);
      ThroughDevice through(&rank.device, rank.stream, rank.rank, &collectives);
      WithAllreduceOf all(&through, &rank.host);
      CheckAllreduce({rank.rank, rank.size, &all, FoldsOnDevice}, DataType::kFloat64,
                     kIpcHalfBytes / 8 + 77);
      const auto reductions = static_cast<int64_t>(ReduceOpsOf(DataType::kFloat64).size());
      EXPECT_EQ(rank.device.counts().operations, 2 * reductions);
      ExpectFine(link->Close(kNever, nullptr));
    });
  }
}

TEST(IpcSupport, IsForSmallAllreduces) {
  FakeIpcHost host;
  OnIpcRanks(2, host, {}, [](const IpcRank& rank) {
    const IpcCollectives collectives(rank.Link(), 1000);
    const BatchTraits small{.op = OpKind::kAllreduce,
                            .dtype = DataType::kFloat32,
                            .reduce_op = ReduceOp::kSum,
                            .device = rank.rank,
                            .bytes = 1000};
    EXPECT_TRUE(collectives.Supports(small));
    BatchTraits other = small;
    other.bytes = 1001;
    EXPECT_FALSE(collectives.Supports(other));
    other = small;
    other.device = -1;
    EXPECT_FALSE(collectives.Supports(other));
    other = small;
    other.op = OpKind::kReduce;
    EXPECT_FALSE(collectives.Supports(other));
    other = small;
    other.reduce_op = ReduceOp::kAdasum;
    EXPECT_FALSE(collectives.Supports(other));
    other = small;
    other.reduce_op = ReduceOp::kProduct;
    EXPECT_TRUE(collectives.Supports(other));
    other.dtype = DataType::kComplex64;
    EXPECT_FALSE(collectives.Supports(other));
  });
}

// The kernel is on the stream and waits for a rank that never comes.
TEST(IpcLoss, EndsTheKernel) {
  FakeIpcHost host;
  OnIpcRanks(3, host, {}, [](const IpcRank& rank) {
    const std::shared_ptr<IpcLink> link = rank.Link();
    if (rank.rank == 2) return;  // Its own link is aborted as it goes.
    IpcCollectives collectives(link, kIpcHalfBytes);
    const std::shared_ptr<uint8_t> tensor = ValueOf(rank.device.Allocate(4000));
    ExpectFine(collectives.Allreduce(tensor.get(), 1000, {}));
    const EventPointer end = ValueOf(rank.device.Record(rank.stream));
    EXPECT_FALSE(ValueOf(rank.device.IsOver(*end)));
    ExpectFine(link->Check());
    link->Abort(Status::PeerLost("rank 2 is lost"));
    link->Abort(Status::Internal("later"));
    ExpectFine(rank.device.Block(*end));
    EXPECT_EQ(link->Check().code(), StatusCode::kPeerLost);
    EXPECT_EQ(collectives.Allreduce(tensor.get(), 1000, {}).code(), StatusCode::kPeerLost);
    EXPECT_EQ(link->Close(kNever, nullptr).code(), StatusCode::kPeerLost);
    rank.Settle();
  });
  EXPECT_EQ(host.open_count(), 0);
}

TEST(IpcClose, GivesUpAtTheDeadline) {
  FakeIpcHost host;
  OnIpcRanks(2, host, {}, [](const IpcRank& rank) {
    const std::shared_ptr<IpcLink> link = rank.Link();
    if (rank.rank == 0) {
      EXPECT_EQ(link->Close(TimePoint::min(), nullptr).code(), StatusCode::kTimeout);
      EXPECT_EQ(link->Check().code(), StatusCode::kTimeout);
    }
    rank.Settle();
  });
}

TEST(IpcClose, GivesUpWhenToldTo) {
  FakeIpcHost host;
  OnIpcRanks(2, host, {}, [](const IpcRank& rank) {
    const std::shared_ptr<IpcLink> link = rank.Link();
    const auto watch = [] { return Status::PeerLost("rank 1 is lost"); };
    if (rank.rank == 0) {
      EXPECT_EQ(link->Close(kNever, watch).code(), StatusCode::kPeerLost);
    }
    rank.Settle();
  });
}

// A rank that is late may still write to a board whose link was aborted.
TEST(IpcBoards, AreUsedAgainUnlessAborted) {
  FakeIpcHost host;
  OnIpcRanks(2, host, {}, [&](const IpcRank& rank) {
    for (int round = 0; round < 3; ++round) {
      const std::shared_ptr<IpcLink> link = rank.Link();
      const std::shared_ptr<uint8_t> tensor = ValueOf(rank.device.Allocate(4000));
      ExpectFine(link->Allreduce(tensor.get(), 1000, {}, false));
      ExpectFine(link->Close(kNever, nullptr));
      EXPECT_EQ(link->Check().code(), StatusCode::kAborted);
    }
    ExpectFine(rank.host.Barrier());
    EXPECT_EQ(host.board_count(), 2);
    rank.Link()->Abort(Status::Aborted("enough"));
    static_cast<void>(rank.Link());
  });
  EXPECT_EQ(host.board_count(), 4);
}

TEST(IpcConnect, IsForAllOrForNobody) {
  for (const bool is_export : {true, false}) {
    FakeIpcHost host;
    const auto fail = [](int device) {
      return device == 1 ? Status::Internal("the driver says no") : Status::Ok();
    };
    (is_export ? host.on_export : host.on_open) = fail;
    OnIpcRanks(3, host, {}, [](const IpcRank& rank) {
      const IpcConnection connection = ValueOf(rank.Connect());
      EXPECT_EQ(connection.link, nullptr);
      EXPECT_THAT(connection.why_not,
                  AllOf(HasSubstr("its rank 1"), HasSubstr("the driver says no")));
    });
    EXPECT_EQ(host.open_count(), 0);
    host.on_export = host.on_open = [](int) { return Status::Ok(); };
    const int boards = host.board_count();
    OnIpcRanks(3, host, {}, [](const IpcRank& rank) { ExpectFine(rank.Link()->Check()); });
    EXPECT_EQ(host.board_count(), 3) << boards << " before";
  }
}

TEST(IpcConnect, NeedsAPortOnEveryRank) {
  FakeIpcHost host;
  OnIpcRanks(2, host, {}, [](const IpcRank& rank) {
    if (rank.rank == 1) rank.device.UseIpcPort(nullptr);
    EXPECT_THAT(ValueOf(rank.Connect()).why_not, HasSubstr("its rank 1"));
  });
}

TEST(IpcConnect, IsNotForAGpuThatEndsLongKernelsUnlessAskedFor) {
  FakeIpcHost host;
  host.room = [](int device) { return IpcRoom{.blocks = 99, .ends_long_kernels = device == 1}; };
  OnIpcRanks(2, host, {}, [](const IpcRank& rank) {
    EXPECT_THAT(
        ValueOf(rank.Connect()).why_not,
        AllOf(HasSubstr("its rank 1"), HasSubstr("display"), HasSubstr("MYDIST_GPU_IPC=on")));
    EXPECT_EQ(ValueOf(rank.Connect(true)).why_not, "");
  });
}

// Ranks 0 to 2 share one that has places for 64 blocks; another GPU has places enough.
TEST(IpcConnect, LaunchesAsManyBlocksAsFitForAllRanksOfAGpu) {
  for (const int places : {64, 3, 2}) {
    FakeIpcHost host;
    host.room = [&](int) { return IpcRoom{.blocks = places}; };
    std::atomic<int> most_blocks = 0;
    host.on_done = [&](int, const IpcAllreduce& job) { most_blocks = job.most_blocks; };
    OnEveryRank(4, [&](Connection& connection) {
      const int rank = connection.rank;
      FakeDevice device({.index = rank, .identity = rank < 3 ? "shared" : "own"});
      device.UseIpcPort(std::make_unique<FakeIpcPort>(&host, &device));
      RankOrderedCollectives on_host(connection.transport.get());
      const IpcRank me{rank, 4, device, ValueOf(device.CreateStream()), on_host};
      const IpcConnection connected = ValueOf(me.Connect());
      if (places < 3) {
        EXPECT_THAT(connected.why_not, HasSubstr("no room"));
        return;
      }
      const std::shared_ptr<uint8_t> tensor = ValueOf(device.Allocate(4000));
      ExpectFine(connected.link->Allreduce(tensor.get(), 1000, {}, false));
      ExpectFine(connected.link->Close(kNever, nullptr));
    });
    EXPECT_EQ(most_blocks, places < 3 ? 0 : places / 3) << places;
  }
}

// Another rank is gone before it has told anything; so no rank has used the board.
TEST(IpcConnect, KeepsNoBoardWhenTheOthersAreLost) {
  FakeIpcHost host;
  OnEveryRank(2, [&](Connection& connection) {
    if (connection.rank == 1) {
      connection.control.reset();
      return;
    }
    FakeDevice device;
    device.UseIpcPort(std::make_unique<FakeIpcPort>(&host, &device));
    RankOrderedCollectives on_host(connection.transport.get());
    const IpcRank rank{0, 2, device, ValueOf(device.CreateStream()), on_host};
    for (int round = 0; round < 2; ++round) EXPECT_FALSE(rank.Connect().ok());
  });
  EXPECT_EQ(host.board_count(), 1);
}

// What the fake device is for: the kernel's tensor is used without an order.
TEST(IpcOrder, MistakesAreFound) {
  FakeIpcHost host;
  OnIpcRanks(2, host, {}, [](const IpcRank& rank) {
    const std::shared_ptr<IpcLink> link = rank.Link();
    const std::shared_ptr<uint8_t> tensor = ValueOf(rank.device.Allocate(4000));
    const std::shared_ptr<uint8_t> source = ValueOf(rank.device.Allocate(4000));
    const StreamHandle other = ValueOf(rank.device.CreateStream());
    ExpectFine(rank.device.Copy(tensor.get(), source.get(), 4000, other));
    EXPECT_EQ(link->Allreduce(tensor.get(), 1000, {}, false).code(), StatusCode::kInternal);
    EXPECT_THAT(rank.device.TakeViolation(), HasSubstr("the kernel between GPUs"));
  });
}

}  // namespace
}  // namespace mydist::testing
