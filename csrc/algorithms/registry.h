// The algorithms of this process: a row for each value of MYDIST_ALGORITHM, in order of preference.
// A process set is served by the first that supports a batch. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/collectives.h"
#include "base/export.h"
#include "base/status.h"
#include "config/config.h"
#include "transport/shm_transport.h"
#include "transport/transport.h"
#include "world/topology.h"

namespace mydist {

// Where an algorithm is to work: one process set as this rank sees it. All but `ranks` outlive what
// is made.
struct AlgorithmSite {
  const Config& config;
  const Topology& topology;
  const std::vector<int>& ranks;  // Of the set, as numbers in the job, ascending; during make only.
  Transport* transport;           // Spans `ranks`; null when there is one.
  shm::ShmPort* shm;              // Null: this rank shares no memory with others of its host.
};

struct AlgorithmRow {
  std::string name;  // A value of MYDIST_ALGORITHM, such as "hierarchical".
  // Null where it cannot serve the set; all ranks come to the same.
  std::function<std::unique_ptr<Collectives>(const AlgorithmSite&)> make;
  // Its results have the bits of a fold in rank order, host by host, as all of ours have. One that
  // says no is used where it is named only.
  bool keeps_rank_order = false;
};

MYDIST_EXPORT std::vector<AlgorithmRow> Algorithms();
// kInvalidArgument with the names there are.
MYDIST_EXPORT Result<AlgorithmRow> FindAlgorithm(const std::string& name);
// Adds one (extensions do), behind ours: it is used where it is named, or where no other serves.
// kInvalidArgument when the name is taken.
MYDIST_EXPORT Status RegisterAlgorithm(AlgorithmRow row);

}  // namespace mydist
