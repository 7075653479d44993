// Job start: how the ranks of a job meet, share memory and connect, before there is an engine.
// Called by process::Init; blocking and collective over all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/config.h"
#include "job/process.h"
#include "transport/factory.h"
#include "transport/shm_transport.h"
#include "world/topology.h"

namespace mydist {

struct StartedJob {
  std::string backend;  // "local", "mpi" or "gloo".
  Topology topology;
  Connection connection;
  std::shared_ptr<shm::ShmPort> shm;  // Null: the ranks of this host share no memory.
  bool shares_everywhere = false;     // On every host of the job, or it has one rank.
  bool wants_timeline = false;        // Rank 0's word.
  bool is_crowded = false;            // There is no core for each rank of this host.
  std::string backend_reason{};       // Why this backend.
};

// As process::Init.
Result<StartedJob> StartJob(const InitOptions& options, const Config& config);

// Backend choice: over which backend a job talks. Pure: a function of facts that are the same on
// all ranks, so all choose alike.

struct BackendFacts {
  std::string asked;  // "auto", "local" or "gloo".
  bool is_one_host = false;
  std::string no_arena_reason;  // Empty: the ranks of each host share memory.
  std::string no_gloo_reason;   // Empty: Gloo loads on every rank.
};

// Whether the choice depends on no_gloo_reason.
bool MayTakeGloo(const BackendFacts& facts);

// What ranks say why they have no Gloo, by rank, as one reason for all; empty: all have it.
std::string NoGlooReason(const std::vector<std::string>& reasons,
                         const std::vector<std::string>& hosts);

struct BackendChoice {
  std::string name;  // "local" or "gloo".
  std::string why;   // For the log.
};

// kInvalidArgument or kInternal saying what is missing and how to get it.
Result<BackendChoice> ChooseBackend(const BackendFacts& facts);

}  // namespace mydist
