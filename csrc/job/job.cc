#include "job/job.h"

#include <utility>

#include "algorithms/registry.h"
#include "job/job_start.h"

namespace mydist {
namespace {

const Failure kStart = {.phase = "start"};

// Before the ranks meet: a wrong name is an error on each of them.
Status CheckAlgorithm(const Config& config) {
  if (config.algorithm == "auto") return Status::Ok();
  return FindAlgorithm(config.algorithm).status().About(kStart);
}

}  // namespace

Result<std::shared_ptr<Job>> Job::Start(const InitOptions& options, Config config,
                                        std::shared_ptr<HandleTable> handles) {
  MYDIST_RETURN_IF_ERROR(CheckAlgorithm(config));
  Result<StartedJob> started = StartJob(options, config);
  if (!started.ok()) return started.status().About(kStart);
  return Run(std::move(started).value(), options, std::move(config), std::move(handles));
}

Result<std::shared_ptr<Job>> Job::Run(StartedJob started, const InitOptions& options, Config config,
                                      std::shared_ptr<HandleTable> handles) {
  MYDIST_RETURN_IF_ERROR(CheckAlgorithm(config));
  std::shared_ptr<Job> job(new Job);
  job->handles_ = std::move(handles);
  job->devices_ = options.devices != nullptr ? options.devices : DevicesOnDemand();
  job->backend_ = std::move(started.backend);
  job->backend_reason_ = std::move(started.backend_reason);
  // With the size of buckets chosen by hand the answer would go unused.
  const bool measures_costs = started.topology.size > 1 && !config.bucket_size_bytes;
  auto engine = Engine::Start({.config = std::move(config),
                               .topology = std::move(started.topology),
                               .connection = std::move(started.connection),
                               .handles = job->handles_,
                               .shm = std::move(started.shm),
                               .shares_everywhere = started.shares_everywhere,
                               .wants_timeline = started.wants_timeline,
                               .devices = job->devices_,
                               .nccl_folders = options.nccl_folders,
                               .wait_policy = WaitPolicy::For(started.is_crowded),
                               .measures_costs = measures_costs});
  if (!engine.ok()) return engine.status().About(kStart);
  job->engine_ = std::move(engine).value();
  return job;
}

Job::~Job() { static_cast<void>(Shutdown().ok()); }

Status Job::Shutdown(bool awaits_living, const std::function<bool()>& is_wanted) {
  if (is_over_ || engine_ == nullptr) return outcome_;
  is_over_ = true;
  if (!engine_->Shutdown(awaits_living, is_wanted)) {
    outcome_ = Status::Timeout(
                   "shutdown: a collective is stuck with a peer that does not answer; its thread "
                   "still runs")
                   .About({.phase = "shut down"});
  }
  return outcome_;
}

std::vector<Fact> Job::Explain() const {
  std::vector<Fact> facts = engine_->Explain();
  facts.insert(facts.begin(), {"backend", backend_, backend_reason_});
  return facts;
}

}  // namespace mydist
