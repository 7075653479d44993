// Job start: how the ranks of a job meet, share memory and connect, before there is an engine.
// Called by process::Init; blocking and collective over all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/usable_cores.h"
#include "config/config.h"
#include "job/heartbeat.h"
#include "job/job.h"
#include "transport/factory.h"
#include "transport/shm_transport.h"
#include "world/topology.h"

namespace mydist {

// Hello: what ranks tell each other before anything else, and what must be equal. Pure.
// All ranks compare the same hellos, so all come to the same outcome.
struct Hello {
  std::string version;   // Of mydist.
  std::string platform;  // Byte order and word size.
  std::string host;      // What identifies the host.
  int64_t pid = 0;
  bool wants_timeline = false;  // Rank 0's decides for the job.
  UsableCores cores;
  std::string config_digest;  // Config::Digest: "name=value" lines.

  bool operator==(const Hello&) const = default;
};

// This process's version and platform filled in.
Hello MakeHello(std::string host, std::string config_digest);

std::vector<uint8_t> EncodeHello(const Hello& hello);
// kVersionMismatch when the bytes are no hello of any version.
Result<Hello> DecodeHello(const std::vector<uint8_t>& bytes);

// Compares everybody with rank 0. kVersionMismatch with a table of versions per rank;
// kMismatch naming the variables that differ, their values and ranks.
Status CompareHellos(const std::vector<Hello>& hellos);

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
  std::string no_heartbeat_reason{};       // Empty: none are wanted, or there are some.
};

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
