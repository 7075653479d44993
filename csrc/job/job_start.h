// Job start: how the ranks of a job meet, share memory and connect, before there is an engine.
// Called by process::Init; blocking and collective over all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/config.h"
#include "job/heartbeat.h"
#include "job/job.h"
#include "transport/factory.h"
#include "transport/shm_transport.h"
#include "world/topology.h"

namespace mydist {

struct StartedJob {
  std::string backend;  // The name of a transport.
  Topology topology;
  Connection connection;
  std::shared_ptr<shm::ShmPort> shm;       // Null: the ranks of this host share no memory.
  bool shares_everywhere = false;          // On every host of the job, or it has one rank.
  bool wants_timeline = false;             // Rank 0's word.
  bool is_crowded = false;                 // There is no core for each rank of this host.
  std::string backend_reason{};            // Why this backend.
  std::unique_ptr<Heartbeat> heartbeat{};  // Connected, not started; null: none.
  Status no_heartbeat{};                   // Why there is none where some are wanted.
};

// What the ranks of a host need to share memory; sizes are those of a job.
shm::ArenaOptions ArenaOptionsOf(const Topology& topology, const Config& config, bool is_crowded);

// The ranks next to this one in the tree of coordinators, which it watches: few.
std::vector<PulsePeer> Neighbours(const Topology& topology, int radix);

// How the ranks watch each other.
struct SharedHeartbeat {
  std::unique_ptr<Heartbeat> heartbeat;  // Connected, not started; null: none.
  Status reason;                         // Why there is none where some are wanted.
};
// Of ranks that have met. Collective over all of them. A rank that can take no heartbeats, or with
// `takes_part` false, is not watched.
Result<SharedHeartbeat> ShareHeartbeats(const Topology& topology, const Config& config,
                                        const BootstrapExchange& exchange, bool takes_part = true);

// As process::Init.
Result<StartedJob> StartJob(const InitOptions& options, const Config& config);

// Backend choice: over which backend a job talks. Pure: a function of facts that are the same on
// all ranks, so all choose alike.

struct BackendFacts {
  std::string asked;  // "auto", "local" or the network's name.
  bool is_one_host = false;
  std::string no_arena_reason;    // Empty: the ranks of each host share memory.
  std::string network;            // The transport between ranks that share no memory.
  std::string no_network_reason;  // Empty: it loads on every rank.
};

// Whether the choice depends on no_network_reason.
bool MayTakeNetwork(const BackendFacts& facts);

// Why the ranks cannot use a transport, given each rank's own reason; empty: all can.
std::string NoNetworkReason(const std::vector<std::string>& reasons,
                            const std::vector<std::string>& hosts);

struct BackendChoice {
  std::string name;  // "local" or the network.
  std::string why;   // For the log.
};

// kInvalidArgument or kInternal saying what is missing and how to get it.
Result<BackendChoice> ChooseBackend(const BackendFacts& facts);

}  // namespace mydist
