// NcclRanks: runs a test body as N ranks, one thread each, every one with a fake device of its own
// and NcclCollectives over the one FakeNccl of the test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "algorithms/device/through_device.h"
#include "algorithms/rank_ordered_collectives.h"
#include "conformance/collectives_suite.h"
#include "conformance/on_every_rank.h"
#include "fakes/device_bench.h"
#include "gpu/nccl_collectives.h"
#include "gpu/nccl_streams.h"

namespace mydist::testing {

struct NcclRank {
  int rank;
  int size;
  FakeDevice& device;
  StreamHandle stream;
  NcclCommunicator& communicator;
  NcclCollectives& collectives;  // On device memory.
  Collectives& host;             // Of the same ranks, without any device.
  Rank me;                       // The collectives for host memory.
};

class NcclRanks {
 public:
  explicit NcclRanks(int size, Pace pace = Pace::kRandom, FakeNccl::Slowness slowness = {})
      : size_(size),
        pace_(pace),
        nccl_([this](nccl::Stream stream,
                     FakeNcclWork work) { streams_.Launch(stream, std::move(work)); },
              slowness) {}

  // `body` ends with nothing under way on its stream, or with its communicator aborted.
  void Run(const std::function<void(const NcclRank&)>& body) {
    OnEveryRank(size_, [&](Connection& connection) {
      const int rank = connection.rank;
      RankOrderedCollectives host(connection.transport.get());
      FakeDevice device({.index = rank, .pace = pace_, .seed = static_cast<uint64_t>(rank) + 1});
      const StreamHandle stream = ValueOf(device.CreateStream());
      streams_.Add(stream, &device);
      NcclCommunicator communicator({.api = &nccl_.api(),
                                     .device = &device,
                                     .set_name = "process set 7",
                                     .rank = rank,
                                     .size = size_},
                                    [&](nccl::UniqueId* id) {
                                      return host.Broadcast(id->internal, sizeof(id->internal), 0);
                                    });
      NcclCollectives collectives({&device, stream}, &communicator);
      ThroughDevice through(&device, stream, rank, &collectives, ThroughDevice::HostBlocks::kNever);
      const Rank me{rank, size_, &through, NcclReduces, Rounding::kEveryStep};
      body({rank, size_, device, stream, communicator, collectives, host, me});
      ExpectOk(device.Block(*ValueOf(device.Record(stream))));
    });
  }

  FakeNccl& nccl() { return nccl_; }

 private:
  const int size_;
  const Pace pace_;
  NcclStreams streams_;
  FakeNccl nccl_;
};

}  // namespace mydist::testing
