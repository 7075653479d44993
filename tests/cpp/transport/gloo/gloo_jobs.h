// Gloo jobs for tests: N ranks as threads of this process, connected through the real plugin.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <utility>

#include "transport/factory.h"
#include "transport/rank_threads.h"
#include "transport/registry.h"

namespace mydist {

// As Python does, and as the engine's thread does for itself: here a test's own thread exchanges,
// and writing to a rank that was killed must be an error, not the end of the survivor.
inline const auto kIgnoresBrokenPipes = signal(SIGPIPE, SIG_IGN);

inline BackendPlugin* GlooPluginForTest() {
  Result<BackendPlugin*> plugin = LoadPlugin("gloo");
  if (!plugin.ok()) {
    ADD_FAILURE() << plugin.status().ToString();
    return nullptr;
  }
  return plugin.value();
}

inline Result<Connection> ConnectGloo(int rank, int size, BootstrapExchange exchange,
                                      const Config& config) {
  BackendPlugin* plugin = GlooPluginForTest();
  if (plugin == nullptr) return Status::Internal("no Gloo plugin");
  BackendOptions options;
  options.rank = rank;
  options.size = size;
  options.config = &config;
  options.exchange = std::move(exchange);
  return plugin->Connect(options);
}

// Runs body(connection) on every rank of a new job.
inline void RunGlooJob(int size, const std::function<void(Connection&)>& body,
                       const Config& config = {}) {
  InMemoryRendezvous rendezvous(size);
  RunAsRanks(size, [&](int rank) {
    Result<Connection> connection = ConnectGloo(rank, size, rendezvous.ForRank(rank), config);
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    EXPECT_EQ(connection->rank, rank);
    EXPECT_EQ(connection->size, size);
    body(connection.value());
  });
}

}  // namespace mydist
