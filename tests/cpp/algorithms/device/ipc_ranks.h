// OnIpcRanks: runs a test body as N ranks of one host, one thread each, every one with a fake
// device whose memory the others reach.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "algorithms/device/ipc_collectives.h"
#include "algorithms/device/ipc_connect.h"
#include "algorithms/rank_ordered_collectives.h"
#include "conformance/collectives_suite.h"
#include "conformance/on_every_rank.h"
#include "fakes/device_bench.h"
#include "fakes/fake_ipc.h"

namespace mydist::testing {

struct IpcRank {
  int rank;
  int size;
  FakeDevice& device;
  StreamHandle stream;
  Collectives& host;  // Of the same ranks, without any device.

  Result<IpcConnection> Connect(bool is_asked_for = false) const {
    return ConnectIpc({.seat = {.device = &device, .stream = stream},
                       .rank = rank,
                       .size = size,
                       .name = "process set 7",
                       .exchange = &host},
                      is_asked_for);
  }
  std::shared_ptr<IpcLink> Link() const {
    const IpcConnection connection = ValueOf(Connect());
    EXPECT_NE(connection.link, nullptr) << connection.why_not;
    return connection.link;
  }
  // Nothing is under way any more.
  void Settle() const { ExpectFine(device.Block(*ValueOf(device.Record(stream)))); }
};

// EXPECT only, no ASSERT: a rank that returns early leaves its peers waiting. Each rank's device
// has its number, and a GPU of its own unless the options name one.
inline void OnIpcRanks(int size, FakeIpcHost& host, const FakeDeviceOptions& options,
                       const std::function<void(const IpcRank&)>& body) {
  OnEveryRank(size, [&](Connection& connection) {
    const int rank = connection.rank;
    FakeDeviceOptions own = options;
    own.index = rank;
    if (own.identity == FakeDeviceOptions().identity) own.identity += std::to_string(rank);
    own.seed = options.seed * 100 + static_cast<uint64_t>(rank);
    FakeDevice device(own);
    device.UseIpcPort(std::make_unique<FakeIpcPort>(&host, &device));
    RankOrderedCollectives on_host(connection.transport.get());
    body({rank, size, device, ValueOf(device.CreateStream()), on_host});
  });
}

// Allreduces by one Collectives, all else by another.
class WithAllreduceOf final : public ForwardingCollectives {
 public:
  WithAllreduceOf(Collectives* allreduce, Collectives* rest) : allreduce_(allreduce), rest_(rest) {}

  bool Supports(const BatchTraits& traits) const override { return allreduce_->Supports(traits); }
  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override {
    return allreduce_->Allreduce(data, count, reduction);
  }

 private:
  Collectives& Inner(const BatchTraits&) const override { return *rest_; }

  Collectives* const allreduce_;
  Collectives* const rest_;
};

}  // namespace mydist::testing
