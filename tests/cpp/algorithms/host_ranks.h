// Ranks on several hosts, as threads of the test: those of one host share an arena, and between
// hosts bytes pass through the loopback backend, where a meter counts them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/hierarchical.h"
#include "algorithms/shm/shm_collectives.h"
#include "algorithms/shm/shm_ranks.h"
#include "conformance/collectives_suite.h"
#include "conformance/on_every_rank.h"
#include "transport/subset_transport.h"
#include "world/topology.h"

namespace mydist::testing {

// One letter for the host of each rank: "aabb" is two hosts with two ranks each.
inline std::vector<std::string> HostsOf(const std::string& layout) {
  std::vector<std::string> hosts;
  for (const char host : layout) hosts.emplace_back(1, host);
  return hosts;
}

// What a rank of such a job has.
struct HostRank {
  int rank;
  HostGroups groups;  // Of the whole job.
  HostMeter* meter;
  shm::ShmPort* port;

  int size() const { return meter->size(); }
  std::unique_ptr<Collectives> SharedMemory() const {
    return std::make_unique<shm::ShmCollectives>(
        port, shm::AllOf(static_cast<int>(groups.own_members().size())));
  }
  Rank With(Collectives* collectives) const { return {rank, size(), collectives}; }
};

// EXPECT only, no ASSERT: a rank that returns early leaves its peers waiting.
inline void OnHosts(const std::string& layout, const std::function<void(const HostRank&)>& body) {
  const shm::ShmDirectory directory;
  const std::vector<std::string> hosts = HostsOf(layout);
  InMemoryRendezvous rendezvous(static_cast<int>(hosts.size()));
  OnEveryRank(static_cast<int>(hosts.size()), [&](Connection& connection) {
    const HostGroups groups =
        MakeHostGroups(hosts, shm::AllOf(static_cast<int>(hosts.size())), connection.rank);
    shm::ArenaOptions options =
        shm::OptionsOf(groups.place, static_cast<int>(groups.own_members().size()), directory);
    options.ranks = groups.own_members();
    const auto port = shm::OpenPort(options, rendezvous.ForRank(connection.rank));
    HostMeter meter(std::move(connection.transport), hosts);
    if (port != nullptr) body({connection.rank, groups, &meter, port.get()});
  });
  EXPECT_TRUE(directory.IsEmpty());
}

}  // namespace mydist::testing
