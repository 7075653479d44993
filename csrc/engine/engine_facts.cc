// What the engine tells about itself; see mydist.explain().
#include <cstdio>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "kernels/simd/simd_path.h"
#include "planner/path_probe.h"
#include "world/host_groups.h"
#include "world/process_set.h"

namespace mydist {
namespace {

// At most 63 characters.
std::string Decimal(const char* format, double value) {
  std::string text(64, '\0');
  const int length = std::snprintf(text.data(), text.size(), format, value);
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return text;
}

std::string Megabytes(int64_t bytes) {
  return Decimal("%.4g MiB", static_cast<double>(bytes) / (1 << 20));
}

Fact DataPath(const Config& config, const Topology& topology, const shm::ShmPort* shm) {
  if (topology.size == 1) return {"data path", "none", "one rank has nobody to exchange with"};
  if (topology.local_size > 1 && shm != nullptr)
    return {"data path", "shared memory inside this host", shm->Description()};
  const char* reason = "MYDIST_SHARED_MEMORY is 0";
  if (config.shared_memory) {
    reason = topology.local_size == 1 ? "this host has one rank"
                                      : "there is no memory to share; see the warning of init()";
  }
  return {"data path", "the backend, between all ranks", reason};
}

Fact Hierarchy(const Config& config, const HostGroups& hosts) {
  if (!hosts.HasTwoLevels()) return {"hierarchy", "all ranks at once", "each host has one rank"};
  const bool is_given = config.hierarchical_allreduce.has_value();
  const bool is_on = config.hierarchical_allreduce.value_or(config.shared_memory);
  return {"hierarchy", is_on ? "inside each host before between hosts" : "all ranks at once",
          is_given ? "MYDIST_HIERARCHICAL_ALLREDUCE is set" : "as MYDIST_SHARED_MEMORY"};
}

Fact Waiting(const WaitPolicy& policy) {
  if (policy.patience == Duration::zero())
    return {"waiting", "gives up the core at once", "there is no core for each rank of this host"};
  return {"waiting", "looks for a moment before it sleeps", "each rank of this host has a core"};
}

}  // namespace

std::vector<Fact> Engine::Explain() const {
  std::vector<Fact> facts = {DataPath(config_, topology_, shm_.get())};
  const HostGroups hosts =
      MakeHostGroups(topology_.hosts, GlobalProcessSet(topology_.size).ranks, topology_.rank);
  if (hosts.host_count() > 1) facts.push_back(Hierarchy(config_, hosts));
  if (topology_.size > 1) facts.push_back(Waiting(policy_));
  facts.push_back({"kernels", std::string(simd::SimdPathName(simd::CurrentPath())),
                   config_.simd == "auto" ? "the widest this CPU has" : "MYDIST_SIMD is set"});
  facts.push_back({"fusion", "up to " + Megabytes(config_.fusion_threshold_bytes),
                   "MYDIST_FUSION_THRESHOLD_MB or its default"});
  if (costs_.measured()) {
    const double latency_us = costs_.latency.count() * 1e6;
    const double assumed_us = static_cast<double>(kWakeUps.count());
    facts.push_back(
        {"latency", Decimal("%.2f us", latency_us),
         Decimal("%.2f us", latency_us - assumed_us) +
             " measured by init(): an allreduce of 8 bytes and the messages before it; " +
             Decimal("%.0f us", assumed_us) + " assumed for wake-ups"});
    facts.push_back({"throughput", Decimal("%.2f GB/s", 1e-9 / costs_.seconds_per_byte),
                     "allreduces of 1 MiB, measured by init()"});
  } else {
    facts.push_back({"latency", "not measured",
                     config_.bucket_size_bytes ? "MYDIST_BUCKET_SIZE_MB is set" : "one rank"});
  }
  for (Fact& fact : executor_.DeviceFacts()) facts.push_back(std::move(fact));
  return facts;
}

std::string Engine::TextOfExecuting() const {
  if (executing_ == nullptr) return "what init() measures";
  const Request& first = executing_->front()->request;
  const size_t more = executing_->size() - 1;
  return std::string(OpKindName(first.op)) + " '" + first.name + "'" +
         (more > 0 ? " with " + std::to_string(more) + " more" : "");
}

}  // namespace mydist
