// Jobs of ranks that share memory, for tests: as threads of this process or forked from it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "algorithms/shm/shm_ranks.h"
#include "conformance/receive_by.h"
#include "conformance/status_checks.h"
#include "transport/factory.h"

namespace mydist::local {

// A rank's end of a job; `port` is what the connection goes through.
struct LocalRank {
  std::shared_ptr<shm::ShmPort> port;
  Connection connection;

  ControlPlane& plane() { return *connection.control; }
};

inline LocalRank ConnectRank(int rank, int size, const shm::ShmDirectory& directory,
                             const BootstrapExchange& exchange) {
  shm::ArenaOptions options = shm::OptionsOf(rank, size, directory);
  options.control_bytes = LocalControlBytes(size);
  LocalRank local{.port = shm::OpenPort(options, exchange), .connection = {}};
  if (local.port == nullptr) return local;
  Result<Connection> connection = ConnectLocal(local.port, exchange);
  ExpectOk(connection.status());
  if (connection.ok()) local.connection = *std::move(connection);
  return local;
}

using RankBody = std::function<void(LocalRank& rank)>;

inline void OnThreads(int size, const RankBody& body) {
  const shm::ShmDirectory directory;
  InMemoryRendezvous rendezvous(size);
  RunAsRanks(size, [&](int rank) {
    LocalRank local = ConnectRank(rank, size, directory, rendezvous.ForRank(rank));
    if (local.connection.control != nullptr) body(local);
  });
  EXPECT_TRUE(directory.IsEmpty());
}

// What a process does as one rank of a forked job.
inline shm::ForkedRanks::Body AsRank(
    int size, const shm::ShmDirectory& directory,
    const std::function<void(LocalRank& rank, const shm::ForkedRanks::Seat& seat)>& body) {
  return [size, &directory, body](const shm::ForkedRanks::Seat& seat) {
    LocalRank local = ConnectRank(seat.rank, size, directory, seat.exchange);
    ASSERT_NE(local.connection.control, nullptr);
    body(local, seat);
  };
}

inline TimePoint Soon() { return Now() + std::chrono::seconds(30); }

inline void ExpectMessage(LocalRank& rank, const IncomingMessage& expected) {
  const auto got = conformance::ReceiveBy(rank.plane(), Soon());
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  ASSERT_TRUE(got->has_value()) << "no message from rank " << expected.source;
  EXPECT_EQ((*got)->source, expected.source);
  EXPECT_TRUE((*got)->payload == expected.payload)
      << (*got)->payload.size() << " bytes, expected " << expected.payload.size();
}

// What is left when the messages that came before have been taken.
inline Status AwaitLoss(ControlPlane& plane) {
  const TimePoint deadline = Soon();
  while (Now() < deadline) {
    const auto got = conformance::ReceiveBy(plane, deadline);
    if (!got.ok()) return got.status();
  }
  return Status::Ok();
}

}  // namespace mydist::local
