// ServiceTest: servers and clients in one process, over Unix sockets with a window or over TCP.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ps/client.h"
#include "ps/server.h"

namespace mydist::ps {

inline const JobKey kKey = [] {
  JobKey key{};
  key.fill(7);
  return key;
}();

// The workers are in this process, which does not end.
inline constexpr Duration kReconnectTime = std::chrono::milliseconds(500);

// A few servers, and workers that are threads.
class ServiceTest : public ::testing::TestWithParam<bool> {
 protected:
  void StartServers(int count, int threads = 2) {
    for (int number = 0; number < count; ++number) {
      ServerOptions options{.listen = {.server = number,
                                       .host_name = "here",
                                       .shares_memory = GetParam(),
                                       .key = kKey},
                            .threads = threads,
                            .reconnect_time = kReconnectTime};
      Result<std::unique_ptr<Server>> server = Server::Start(options);
      ASSERT_TRUE(server.ok()) << server.status().ToString();
      addresses_.push_back((*server)->address());
      servers_.push_back(std::move(server).value());
    }
  }
  std::unique_ptr<Client> MakeClient(int rank, OnSpan on_span = nullptr) const {
    ClientOptions options{.servers = addresses_};
    options.lane.connect.key = kKey;
    static std::atomic<uint64_t> session{0};
    options.lane.connect.self = {rank, getpid(), "here", ++session};
    options.lane.connect.shares_memory = GetParam();
    options.lane.connect.window_bytes = 1 << 20;
    options.lane.most_in_flight = 1 << 20;
    options.stall_warning = std::chrono::seconds(20);
    options.is_recording = [] { return true; };
    options.on_span = std::move(on_span);
    Result<std::unique_ptr<Client>> client = Client::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    return std::move(client).value();
  }
  void OnWorkers(int count, const std::function<void(int rank)>& body) const {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank) threads.emplace_back([&, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }
  TableSpec Dense(const std::string& name, int64_t elements, Consistency consistency,
                  int workers) const {
    TableSpec spec{.name = name,
                   .elements = elements,
                   .piece_elements = 1000,
                   .rule = {"add", {}},
                   .consistency = consistency};
    for (int rank = 0; rank < workers; ++rank) spec.ranks.push_back(rank);
    return spec;
  }
  // Of as many workers. Each declares a table of zeros for each of `kinds`: 0, 1 and so on.
  std::vector<std::unique_ptr<Client>> ClientsWithTables(
      int workers, int64_t elements, const std::vector<Consistency>& kinds) const {
    std::vector<std::unique_ptr<Client>> clients;
    for (int rank = 0; rank < workers; ++rank) {
      clients.push_back(MakeClient(rank));
      for (uint32_t table = 0; table < kinds.size(); ++table) {
        const TableSpec spec = Dense("t" + std::to_string(table), elements, kinds[table], workers);
        const std::vector<float> zeros(static_cast<size_t>(elements));
        const Status status = clients.back()->Declare(table, spec, rank, rank == 0, zeros);
        EXPECT_TRUE(status.ok()) << status.ToString();
      }
    }
    return clients;
  }
  TableSpec Rows(const std::string& name, int64_t width, Consistency consistency,
                 int workers) const {
    TableSpec spec = Dense(name, 0, consistency, workers);
    spec.piece_elements = 0;
    spec.rows = 10'000;
    spec.width = width;
    return spec;
  }

  std::vector<Address> addresses_;
  std::vector<std::unique_ptr<Server>> servers_;
};

inline bool IsOverWithin(Client& client, const std::shared_ptr<Operation>& operation,
                         Duration time) {
  Patience patience;
  return client.Wait(operation, patience, Now() + time);
}

inline void Finish(Client& client, const std::shared_ptr<Operation>& operation) {
  EXPECT_TRUE(IsOverWithin(client, operation, std::chrono::seconds(60)));
  EXPECT_TRUE(operation->status().ok()) << operation->status().ToString();
}

}  // namespace mydist::ps
