// OnDirectRanks: runs a test as N ranks over loopback, each with a fake device of its own and
// collectives over a transport that takes its memory.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "algorithms/device/device_space.h"
#include "algorithms/device/staged_ranks.h"
#include "fakes/noted_transport.h"

namespace mydist::testing {

// Tensors of the suites take all algorithms, and many rounds.
inline constexpr RankOrderedLimits kSmallRounds{.one_shot_bytes = 512,
                                                .scatter_broadcast_bytes = 4096,
                                                .scratch_bytes = 4096,
                                                .minimum_round_bytes = 64};

struct DirectRank {
  int rank;
  int size;
  FakeDevice* device;
  StreamHandle stream;
  Transport* network;
  Connection* connection;

  std::unique_ptr<RankOrderedCollectives> On(Device* through,
                                             const RankOrderedLimits& limits) const {
    return std::make_unique<RankOrderedCollectives>(
        network, limits,
        std::make_unique<DeviceSpace>(StreamSeat{.device = through, .stream = stream}, true));
  }
};

// EXPECT only, no ASSERT: a rank that returns early leaves its peers waiting.
inline void OnDirectRanks(int size, const FakeDeviceOptions& options,
                          const std::function<void(const DirectRank&)>& body) {
  OnFakeDevices(size, options, [&](const StagedRank& rank) {
    std::unique_ptr<Transport> network;  // One rank has none.
    if (rank.size > 1) {
      network =
          std::make_unique<NotedTransport>(rank.device, std::move(rank.connection->transport));
    }
    body({rank.rank, rank.size, rank.device, rank.stream, network.get(), rank.connection});
  });
}

}  // namespace mydist::testing
