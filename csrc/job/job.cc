#include "job/job.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <span>
#include <thread>
#include <utility>

#include "algorithms/registry.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/mutex.h"
#include "job/extension.h"
#include "job/job_start.h"
#include "kernels/simd/simd_path.h"
#include "mydist/build_config.h"
#include "world/process_set.h"

namespace mydist {
namespace {

const Failure kStart = {.phase = "start"};
// A note about a rank that the others wait for is about so many times MYDIST_STALL_WARNING_SECONDS.
constexpr int kWarningsInWindow = 6;

// Before the ranks meet: a wrong name is an error on each of them.
Status CheckAlgorithm(const Config& config) {
  if (config.algorithm == "auto") return Status::Ok();
  return FindAlgorithm(config.algorithm).status().About(kStart);
}

FlightDumperOptions DumperOptionsOf(const Topology& topology, const Config& config) {
  return {.folder = config.flight_recorder_folder,
          .header = {.rank = topology.rank,
                     .size = topology.size,
                     .host = topology.hosts[static_cast<size_t>(topology.rank)],
                     .pid = getpid(),
                     .version = build_config::kVersion,
                     .reason = "",
                     .message = ""},
          .tells_user = topology.local_rank == 0};
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
  ArmFailpoint(config.failpoint);  // Before there is a thread that could pass one.
  job->devices_ = options.devices != nullptr ? options.devices : DevicesOnDemand();
  job->backend_ = std::move(started.backend);
  job->backend_reason_ = std::move(started.backend_reason);
  auto recorder = std::make_shared<FlightRecorder>();
  auto dumper = FlightDumper::Start(recorder, DumperOptionsOf(started.topology, config));
  // With the size of buckets chosen by hand the answer would go unused.
  const Duration warning = config.stall_warning;
  const bool watches_stragglers = started.topology.rank == 0 && warning > Duration::zero();
  if (watches_stragglers) {
    job->stragglers_ = std::make_unique<StragglerWatch>(kWarningsInWindow * warning);
  }
  const bool measures_costs = started.topology.size > 1 && !config.bucket_size_bytes;
  RankEnds rank_ends = options.rank_ends >= 0 ? RankEnds(options.rank_ends, options.members)
                                              : RankEnds(started.topology.seen_pids);
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
                               .rank_ends = std::move(rank_ends),
                               .recorder = std::move(recorder),
                               .dumper = std::move(dumper),
                               .measures_costs = measures_costs});
  if (!engine.ok()) return engine.status().About(kStart);
  job->engine_ = std::move(engine).value();
  if (started.heartbeat != nullptr) {
    job->heartbeat_ = std::move(started.heartbeat);
    job->StartHeartbeat();
  }
  return job;
}

// The other ranks have started, and do without if need be.
void Job::StartHeartbeat() {
  Engine* const engine = engine_.get();
  const Status started = heartbeat_->Start(
      [engine](int rank) {
        return RankText(rank, engine->topology().hosts, engine->topology().pids);
      },
      [engine](const PeerFinding& finding) { engine->Report(finding); },
      {.tell =
           [this, engine] {
             TellStragglers();
             return engine->progress().ForHeartbeat(Now());
           },
       .take =
           [engine](std::span<const uint8_t> news) {
             engine->progress().HearHeartbeat(news, Now());
           }});
  if (!started.ok()) WarnOfNoHeartbeat(started);
}

void Job::TellStragglers() {
  if (stragglers_ == nullptr || !LogTakesLine()) return;
  const TimePoint now = Now();
  const auto note = stragglers_->Look(engine_->progress().All(now), now);
  if (!note) return;
  const Topology& topology = engine_->topology();
  const std::string who =
      RankListText(note->ranks) + HostListText(note->ranks, topology.hosts, topology.pids);
  MYDIST_LOG(kWarning) << StragglerText(*note, who);
}

Job::~Job() { static_cast<void>(Shutdown().ok()); }

Status Job::Shutdown(bool awaits_living, const std::function<bool()>& is_wanted) {
  if (is_over_ || engine_ == nullptr) return outcome_;
  is_over_ = true;
  const bool has_ended = engine_->Shutdown(awaits_living, is_wanted);
  if (heartbeat_ != nullptr)
    heartbeat_->Stop();  // The others have watched this rank until it left.
  if (!has_ended) {
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

namespace process {
namespace {

struct Instance {
  Mutex mutex;
  std::shared_ptr<Job> job MYDIST_GUARDED_BY(mutex);
  bool has_turn MYDIST_GUARDED_BY(mutex) = false;  // A thread is in Init or Shutdown.
  CondVar turn_ended;
  const std::shared_ptr<HandleTable> handles = std::make_shared<HandleTable>();
  bool is_forked_copy = false;  // Set before other threads see the instance.
  // The threads that are in Init and in Shutdown. They may run a signal handler that calls in
  // again.
  std::atomic<std::thread::id> starting{};
  std::atomic<std::thread::id> leaving{};
  std::atomic<bool> hurries{false};  // A thread that waits for its turn wants Shutdown to end.
};

// Never destroyed: threads of the program may still call in while it exits. Null in a process that
// has not used mydist yet.
std::atomic<Instance*> g_instance{nullptr};
// Read in a forked child, where the mutex that guards `engine` may never be released.
std::atomic<bool> g_is_initialized{false};

// In a forked child the engine's thread does not exist, and the mutexes may be locked for ever: the
// child gets an instance of its own that refuses to work.
void ReplaceInForkedChild() {
  auto* instance = new Instance;
  instance->is_forked_copy = g_is_initialized.load();
  g_instance.store(instance);
}

Instance& TheInstance() {
  static Instance* const kInstance = [] {
    auto* instance = new Instance;
    g_instance.store(instance);
    return instance;
  }();
  static_cast<void>(kInstance);
  return *g_instance.load();
}

Status NotInitialized() {
  if (TheInstance().is_forked_copy) {
    return Status::InvalidArgument(
        "this process was forked after mydist.init() and cannot use mydist; start it with the "
        "'spawn' method, or keep mydist calls in the parent");
  }
  return Status::InvalidArgument("mydist has not been initialized; call mydist.init() first");
}

// How often a caller that waits for its turn is asked whether it still wants it.
constexpr std::chrono::milliseconds kTurnCheck{100};

// Init and Shutdown take turns; a turn lasts as long as this object. A caller that is not wanted
// any more, or has no patience, makes the Shutdown of another thread end without ranks that run.
class Turn {
 public:
  Turn(Instance& instance, bool is_patient, const std::function<bool()>& is_wanted)
      : instance_(instance) {
    for (TimePoint deadline = kPast; !TakeBy(deadline); deadline = Now() + kTurnCheck) {
      is_wanted_ = is_wanted_ && (!is_wanted || is_wanted());
      if (!is_wanted_ || !is_patient) instance_.hurries.store(true);
    }
  }
  ~Turn() {
    MutexLock lock(instance_.mutex);
    instance_.has_turn = false;
    instance_.turn_ended.NotifyOne();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  bool is_wanted() const { return is_wanted_; }

 private:
  bool TakeBy(TimePoint deadline) {
    MutexLock lock(instance_.mutex);
    if (instance_.has_turn) instance_.turn_ended.WaitUntil(instance_.mutex, deadline);
    return !std::exchange(instance_.has_turn, true);
  }

  Instance& instance_;
  bool is_wanted_ = true;
};

// Notes the thread until its end.
class ThisThread {
 public:
  explicit ThisThread(std::atomic<std::thread::id>& noted) : noted_(noted) {
    noted_.store(std::this_thread::get_id());
  }
  ~ThisThread() { noted_.store(std::thread::id()); }
  ThisThread(const ThisThread&) = delete;
  ThisThread& operator=(const ThisThread&) = delete;

 private:
  std::atomic<std::thread::id>& noted_;
};

// Counts one until its end. The engine is not held meanwhile: what the caller is asked in between
// may end it, or fork.
class PatientCaller {
 public:
  explicit PatientCaller(std::shared_ptr<std::atomic<int>> count) : count_(std::move(count)) {
    count_->fetch_add(1);
  }
  ~PatientCaller() { count_->fetch_sub(1); }
  PatientCaller(const PatientCaller&) = delete;
  PatientCaller& operator=(const PatientCaller&) = delete;

 private:
  const std::shared_ptr<std::atomic<int>> count_;
};

}  // namespace

Status Init(const InitOptions& options, const std::function<bool()>& is_wanted) {
  Instance& instance = TheInstance();
  if (instance.is_forked_copy) return NotInitialized();
  if (instance.leaving.load() == std::this_thread::get_id()) {
    return Status::InvalidArgument("init: mydist is shutting down; call it after shutdown()");
  }
  if (instance.starting.load() == std::this_thread::get_id()) {
    return Status::InvalidArgument("init: this thread is in init() already");
  }
  const Turn turn(instance, true, is_wanted);
  if (!turn.is_wanted()) return Status::Aborted("init: interrupted before it began");
  const ThisThread is_starting(instance.starting);
  if (IsInitialized()) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(Config config, ConfigWithExtensions());
  SetLogLevel(config.log_level);
  for (const std::string& warning : UnknownVariables()) MYDIST_LOG(kWarning) << warning;
  MYDIST_RETURN_IF_ERROR(simd::UseSimd(config.simd));
  MYDIST_LOG(kInfo) << "this rank reduces with the " << simd::SimdPathName(simd::CurrentPath())
                    << " kernels";
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<Job> job,
                          Job::Start(options, std::move(config), instance.handles));
  static const bool kRegistered = pthread_atfork(nullptr, nullptr, ReplaceInForkedChild) == 0;
  if (!kRegistered)
    MYDIST_LOG(kWarning) << "pthread_atfork failed: using mydist in a forked child is undefined";
  MutexLock lock(instance.mutex);
  instance.job = std::move(job);
  g_is_initialized.store(true);
  return Status::Ok();
}

Status Shutdown(bool awaits_living, const std::function<bool()>& is_wanted) {
  Instance& instance = TheInstance();
  if (instance.is_forked_copy) return Status::Ok();
  if (instance.leaving.load() == std::this_thread::get_id()) return Status::Ok();
  if (instance.starting.load() == std::this_thread::get_id()) {
    return Status::InvalidArgument("shutdown: this thread is in init(); call it after that");
  }
  const Turn turn(instance, awaits_living, is_wanted);
  instance.hurries.store(false);
  const ThisThread is_leaving(instance.leaving);
  std::shared_ptr<Job> job;
  {
    MutexLock lock(instance.mutex);
    job = std::move(instance.job);
    instance.job = nullptr;
    g_is_initialized.store(false);
  }
  if (job == nullptr) return Status::Ok();
  return job->Shutdown(awaits_living, [&instance, &turn, &is_wanted] {
    return turn.is_wanted() && !instance.hurries.load() && (!is_wanted || is_wanted());
  });
}

bool IsInitialized() {
  Instance& instance = TheInstance();
  MutexLock lock(instance.mutex);
  return instance.job != nullptr;
}

Result<std::shared_ptr<Job>> CurrentJob() {
  Instance& instance = TheInstance();
  MutexLock lock(instance.mutex);
  if (instance.job == nullptr) return NotInitialized();
  return instance.job;
}

void Hurry() {
  if (const auto job = CurrentJob(); job.ok()) (*job)->engine().Hurry();
}

void FearForPeers() {
  if (const auto job = CurrentJob(); job.ok()) (*job)->FearForPeers();
}

// A caller that asks for an outcome needs submissions of any pace.
Result<bool> Poll(Handle handle) {
  Hurry();
  return TheInstance().handles->Poll(handle);
}

Result<std::optional<Status>> WaitWhile(Handle handle, Duration interval,
                                        const std::function<bool()>& is_wanted) {
  const auto wait = [handle, interval] {
    return TheInstance().handles->Wait(handle, Now() + interval);
  };
  std::optional<PatientCaller> caller;
  Result<std::optional<Status>> outcome = std::optional<Status>();
  if (const auto job = CurrentJob(); job.ok()) {
    caller.emplace((*job)->engine().patient_callers());
    outcome = (*job)->engine().Wait(handle, Now() + interval);
  } else {  // A handle of an engine that has gone can still be waited for.
    outcome = wait();
  }
  while (outcome.ok() && !outcome->has_value() && is_wanted()) {
    outcome = wait();
  }
  return outcome;
}

void Release(Handle handle) {
  Hurry();
  TheInstance().handles->Release(handle);
}

std::optional<std::pair<std::string, std::string>> OldestInFlight() {
  return TheInstance().handles->OldestInFlight();
}

std::optional<LastCompleted> FindLastCompleted() {
  Instance& instance = TheInstance();
  MutexLock lock(instance.mutex);  // So that this is not the last to let go of the job.
  if (instance.job == nullptr) return std::nullopt;
  const std::optional<FlightRecord> last = instance.job->engine().recorder().LastDone();
  if (!last) return LastCompleted();
  const std::optional<OpKind> op = OpKindFromWire(last->op);
  return LastCompleted{.operation = op ? std::string(OpKindName(*op)) : "join",
                       .tensor = op ? last->NameText() : "",
                       .number = last->run,
                       .ago = 1e-9 * static_cast<double>(ToNanoseconds(Now()) - last->ended_ns)};
}

}  // namespace process

}  // namespace mydist
