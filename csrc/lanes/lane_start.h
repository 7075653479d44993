// How the members of a lane meet, share memory and connect. Blocking and collective over them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "algorithms/collectives.h"
#include "base/status.h"
#include "config/config.h"
#include "job/heartbeat.h"
#include "transport/factory.h"
#include "transport/shm_transport.h"
#include "world/topology.h"
#include "world/watchdog.h"

namespace mydist {

struct LaneOptions {
  int rank = 0;  // In the group.
  int size = 1;
  std::string name;            // Of the group, for messages.
  BootstrapExchange exchange;  // Over the members; needed unless size is 1.
  // The members as ranks of the program, and how many ranks that has; empty: the group has all.
  std::vector<int> ranks{};
  int world_size = 0;
  // The program was started by MPI, which connects ranks that share no memory, if it can.
  bool prefers_mpi = false;
  int rank_ends = -1;  // mydistrun's descriptor; see world/rank_ends.h. Open as long as the lane.

  std::vector<int> WorldRanks() const;
};

// What a lane stands on. The order of the fields is that of construction: later ones use earlier.
struct LaneGround {
  Config config;
  Topology topology;
  std::shared_ptr<shm::ShmPort> shm;  // Null: the members of this host share no memory.
  Connection connection;              // Empty when shared memory connects all of them.
  std::vector<std::unique_ptr<Collectives>> choices;
  std::unique_ptr<Heartbeat> heartbeat;  // Not started; null: none.
  bool has_given_up = false;

  Transport* transport() {
    return connection.transport != nullptr ? connection.transport.get()
           : shm != nullptr                ? &shm->transport()
                                           : nullptr;
  }
  void SetWatchdog(Watchdog* watchdog);
  // What carries messages between two members.
  Result<ControlPlane*> OpenPlane();
  // "rank 1 of the group (host a, pid 7)": this one.
  std::string Name() const;
  // Tells the other members why this one takes part no more. Bounded. What is left is Close.
  void GiveUp(const Status& why);
  // The error of this member when another one has given up; else OK.
  Status FindGivenUp() const;
  // Hands over what has been sent, and says goodbye.
  void Close();
};

// kMismatch and kVersionMismatch when the members are different builds or settings; kInternal when
// they cannot connect.
// `watched`: the ranks of the program that this one watches already, in other groups.
Result<std::unique_ptr<LaneGround>> StartLane(const LaneOptions& options, const Config& config,
                                              const std::vector<int>& watched);

}  // namespace mydist
