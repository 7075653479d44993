#include "runtime/process.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "ops/shm/arena.h"
#include "ops/shm/shm_port.h"
#include "ops/simd/simd_path.h"
#include "runtime/engine.h"
#include "runtime/hello.h"

namespace mydist::process {
namespace {

// How long the other ranks may take to leave after a start that failed on all of them.
constexpr std::chrono::seconds kLeaveGrace{1};

struct Instance {
  // Held for the whole of Init and Shutdown, so that they take turns.
  Mutex lifecycle_mutex;
  Mutex mutex;
  std::shared_ptr<Engine> engine MYDIST_GUARDED_BY(mutex);
  std::string backend MYDIST_GUARDED_BY(mutex);
  const std::shared_ptr<HandleTable> handles = std::make_shared<HandleTable>();
  bool is_forked_copy = false;  // Set before anybody sees the instance.
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
        "mydist is not available in a process forked from one that has initialized it; start the "
        "process with the 'spawn' method, or keep mydist calls in the parent");
  }
  return Status::InvalidArgument("mydist has not been initialized; call mydist.init() first");
}

Result<std::shared_ptr<Engine>> CurrentEngine() {
  Instance& instance = TheInstance();
  MutexLock lock(instance.mutex);
  if (instance.engine == nullptr) return NotInitialized();
  return instance.engine;
}

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

Result<Connection> Connect(const InitOptions& options, const Config& config) {
  if (options.backend == "local") {
    if (options.size != 1) {
      return Status::InvalidArgument("the local backend is for one rank, not " +
                                     std::to_string(options.size) + "; use mpi or gloo");
    }
    return ConnectLocal();
  }
  MYDIST_ASSIGN_OR_RETURN(BackendPlugin * plugin, LoadPlugin(options.backend));
  MYDIST_LOG(kInfo) << "connecting over " << plugin->Description();
  return plugin->Connect({options.rank, options.size, &config, options.exchange, options.members});
}

struct Meeting {
  Topology topology;
  bool wants_timeline = false;  // Rank 0's word.
};

// Compares notes with the other ranks.
Result<Meeting> Meet(const Connection& connection, const Config& config) {
  Hello mine = MakeHello(config.host_id.empty() ? HostName() : config.host_id, config.Digest());
  mine.wants_timeline = !config.timeline_path.empty();
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Bytes> blobs, connection.exchange(EncodeHello(mine)));
  if (blobs.size() != static_cast<size_t>(connection.size)) {
    return Status::Internal("the exchange at the start answered for " +
                            std::to_string(blobs.size()) + " ranks, expected " +
                            std::to_string(connection.size) +
                            "; is a rendezvous of another job still running?");
  }
  std::vector<Hello> hellos;
  std::vector<std::string> hosts;
  for (const Bytes& blob : blobs) {
    MYDIST_ASSIGN_OR_RETURN(Hello hello, DecodeHello(blob));
    hosts.push_back(hello.host);
    hellos.push_back(std::move(hello));
  }
  MYDIST_RETURN_IF_ERROR(CompareHellos(hellos));
  MYDIST_ASSIGN_OR_RETURN(Topology topology, MakeTopology(connection.rank, std::move(hosts)));
  return Meeting{std::move(topology), hellos.front().wants_timeline};
}

// Collective over all ranks. Null when there is nobody to share memory with, or no such memory:
// that is a warning, and the job reduces over its backend.
Result<std::unique_ptr<shm::ShmPort>> OpenSharedMemory(const Connection& connection,
                                                       const Topology& topology,
                                                       const Config& config) {
  const std::set<std::string> hosts(topology.hosts.begin(), topology.hosts.end());
  if (!config.shared_memory || hosts.size() == topology.hosts.size()) {
    return std::unique_ptr<shm::ShmPort>();
  }
  shm::ArenaOptions options;
  const std::string& host = topology.hosts[static_cast<size_t>(topology.rank)];
  for (int rank = 0; rank < topology.size; ++rank) {
    if (topology.hosts[static_cast<size_t>(rank)] == host) options.ranks.push_back(rank);
  }
  options.index = topology.local_rank;
  options.host = host;
  MYDIST_ASSIGN_OR_RETURN(shm::Arena::Establishment established,
                          shm::Arena::Establish(options, connection.exchange));
  if (established.arena != nullptr) {
    return std::make_unique<shm::ShmPort>(std::move(established.arena));
  }
  if (topology.local_rank == 0) {
    MYDIST_LOG(kWarning) << "the ranks of host " << host
                         << " reduce without shared memory, which is slower; "
                         << established.reason;
  }
  return std::unique_ptr<shm::ShmPort>();
}

// All ranks have compared the same hellos, so all come here: an orderly end leaves the backend
// usable for another attempt (and lets MPI finalize).
void Leave(Connection& connection) {
  if (connection.control == nullptr) return;
  if (Status closed = connection.control->Close(Now() + kLeaveGrace); !closed.ok()) {
    MYDIST_LOG(kDebug) << "closing after a failed start: " << closed.message();
  }
}

}  // namespace

Status Init(const InitOptions& options) {
  Instance& instance = TheInstance();
  if (instance.is_forked_copy) return NotInitialized();
  MutexLock lifecycle(instance.lifecycle_mutex);
  if (IsInitialized()) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(Config config, Config::FromEnv());
  SetLogLevel(config.log_level);
  for (const std::string& warning : UnknownVariables()) MYDIST_LOG(kWarning) << warning;
  MYDIST_RETURN_IF_ERROR(simd::UseSimd(config.simd));
  MYDIST_ASSIGN_OR_RETURN(Connection connection, Connect(options, config));
  Result<Meeting> met = Meet(connection, config);
  if (!met.ok()) {
    Leave(connection);
    return met.status();
  }
  Meeting meeting = *std::move(met);
  const Topology& topology = meeting.topology;
  SetLogRank(topology.rank, topology.size);
  MYDIST_LOG(kInfo) << "rank " << topology.rank << " of " << topology.size << " on host "
                    << topology.hosts[static_cast<size_t>(topology.rank)] << " uses the "
                    << options.backend << " backend and the "
                    << simd::SimdPathName(simd::CurrentPath()) << " kernels";
  Result<std::unique_ptr<shm::ShmPort>> shm = OpenSharedMemory(connection, topology, config);
  if (!shm.ok()) {
    Leave(connection);
    return shm.status();
  }
  MYDIST_LOG(kInfo) << "ranks of one host reduce "
                    << (*shm == nullptr ? "over the backend"
                                        : "through shared memory; " + (*shm)->Description());
  MYDIST_ASSIGN_OR_RETURN(std::shared_ptr<Engine> engine,
                          Engine::Start({.config = std::move(config),
                                         .topology = std::move(meeting.topology),
                                         .connection = std::move(connection),
                                         .handles = instance.handles,
                                         .shm = *std::move(shm),
                                         .wants_timeline = meeting.wants_timeline}));
  static const bool kRegistered = pthread_atfork(nullptr, nullptr, ReplaceInForkedChild) == 0;
  if (!kRegistered) MYDIST_LOG(kWarning) << "forked children will not be protected";
  MutexLock lock(instance.mutex);
  instance.engine = std::move(engine);
  instance.backend = options.backend;
  g_is_initialized.store(true);
  return Status::Ok();
}

Status Shutdown() {
  Instance& instance = TheInstance();
  if (instance.is_forked_copy) return Status::Ok();
  MutexLock lifecycle(instance.lifecycle_mutex);
  std::shared_ptr<Engine> engine;
  {
    MutexLock lock(instance.mutex);
    engine = std::move(instance.engine);
    instance.engine = nullptr;
    g_is_initialized.store(false);
  }
  if (engine == nullptr || engine->Shutdown()) return Status::Ok();
  return Status::Timeout(
      "a collective is stuck with a peer that does not answer; its engine was left behind");
}

bool IsInitialized() {
  Instance& instance = TheInstance();
  MutexLock lock(instance.mutex);
  return instance.engine != nullptr;
}

Result<Topology> GetTopology() {
  MYDIST_ASSIGN_OR_RETURN(const auto engine, CurrentEngine());
  return engine->topology();
}

Result<std::string> BackendName() {
  Instance& instance = TheInstance();
  MutexLock lock(instance.mutex);
  if (instance.engine == nullptr) return NotInitialized();
  return instance.backend;
}

Result<Handle> Submit(std::vector<Submission> tensors, Pace pace) {
  MYDIST_ASSIGN_OR_RETURN(const auto engine, CurrentEngine());
  return engine->Submit(std::move(tensors), pace);
}

Result<Handle> Join(NumbersCallback on_numbers) {
  MYDIST_ASSIGN_OR_RETURN(const auto engine, CurrentEngine());
  return engine->Join(std::move(on_numbers));
}

Result<ProcessSet> GetProcessSet(ProcessSetId id) {
  MYDIST_ASSIGN_OR_RETURN(const auto engine, CurrentEngine());
  return engine->GetProcessSet(id);
}

Result<std::shared_ptr<uint8_t>> AllocateShared(int64_t bytes) {
  MYDIST_ASSIGN_OR_RETURN(const auto engine, CurrentEngine());
  return engine->AllocateShared(bytes);
}

// Whoever asks for an outcome waits for what was submitted with Pace::kWithMore as well.
static void Hurry() {
  if (const auto engine = CurrentEngine(); engine.ok()) (*engine)->Hurry();
}

Result<bool> Poll(Handle handle) {
  Hurry();
  return TheInstance().handles->Poll(handle);
}

Result<std::optional<Status>> Wait(Handle handle, TimePoint deadline) {
  Hurry();
  return TheInstance().handles->Wait(handle, deadline);
}

void Release(Handle handle) { TheInstance().handles->Release(handle); }

Status StartTimeline(const std::string& path, bool mark_cycles) {
  MYDIST_ASSIGN_OR_RETURN(const auto engine, CurrentEngine());
  return engine->StartTimeline(path, mark_cycles);
}

Status StopTimeline() {
  MYDIST_ASSIGN_OR_RETURN(const auto engine, CurrentEngine());
  return engine->StopTimeline();
}

Result<EngineStats> Stats() {
  MYDIST_ASSIGN_OR_RETURN(const auto engine, CurrentEngine());
  return engine->stats();
}

}  // namespace mydist::process
