// Job start: how the ranks of a job meet, share memory and connect, before there is an engine.
// Called by process::Init; blocking and collective over all ranks.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "config/config.h"
#include "job/process.h"
#include "transport/factory.h"
#include "transport/shm_port.h"
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

}  // namespace mydist
