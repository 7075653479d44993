// OnStagedRanks: runs a test as N ranks over loopback, each with a fake device of its own and
// staged collectives on a stream of it.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "algorithms/device/staged_collectives.h"
#include "algorithms/device/through_device.h"
#include "algorithms/rank_ordered_collectives.h"
#include "conformance/collectives_suite.h"
#include "conformance/on_every_rank.h"
#include "fakes/device_bench.h"
#include "fakes/fake_device.h"
#include "fakes/noted_collectives.h"

namespace mydist::testing {

// Tensors of the suites take many chunks; more than there are in flight.
inline constexpr StagingLimits kSmallChunks{
    .least_chunk_bytes = 64, .most_chunk_bytes = 16384, .chunks_in_flight = 4};

inline std::shared_ptr<StagingPipeline> OpenPipeline(Device* device, StreamHandle stream,
                                                     const StagingLimits& limits) {
  return ValueOf(StagingPipeline::Open({.device = device, .stream = stream}, limits));
}

// What a rank of such a job has.
struct StagedRank {
  int rank;
  int size;
  Connection* connection;
  FakeDevice* device;
  StreamHandle stream;

  std::unique_ptr<Collectives> Inner() const {
    return std::make_unique<NotedCollectives>(
        device, rank, std::make_unique<RankOrderedCollectives>(connection->transport.get()));
  }
};

// EXPECT only, no ASSERT: a rank that returns early leaves its peers waiting.
inline void OnFakeDevices(int size, const FakeDeviceOptions& options,
                          const std::function<void(const StagedRank&)>& body) {
  OnEveryRank(size, [&](Connection& connection) {
    FakeDeviceOptions own = options;
    own.seed = options.seed * 100 + static_cast<uint64_t>(connection.rank);
    FakeDevice device(own);
    const StreamHandle stream = ValueOf(device.CreateStream());
    body({connection.rank, connection.size, &connection, &device, stream});
  });
}

// The suites' tensors are copied to the device and back.
inline void OnStagedRanks(int size, const FakeDeviceOptions& options, const StagingLimits& limits,
                          const std::function<void(const Rank&)>& body) {
  OnFakeDevices(size, options, [&](const StagedRank& rank) {
    StagedCollectives staged(rank.rank, rank.Inner(),
                             OpenPipeline(rank.device, rank.stream, limits));
    ThroughDevice collectives(rank.device, rank.stream, rank.rank, &staged);
    body({rank.rank, rank.size, &collectives});
  });
}

}  // namespace mydist::testing
