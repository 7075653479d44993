// Job: one job as one rank takes part in it: its engine, its handles, and what it talks over.
// A process may have several at once, of other ranks or connected by other means, or one after the
// other: nothing of a Job is shared but its HandleTable, which Jobs may have one after the other
// only. Handles are numbered by their table. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/device/device_plugin.h"
#include "base/clock.h"
#include "base/export.h"
#include "base/status.h"
#include "config/config.h"
#include "engine/engine.h"
#include "engine/handle_table.h"
#include "job/heartbeat.h"
#include "job/straggler_watch.h"
#include "planner/device_path.h"
#include "transport/factory.h"

namespace mydist {

struct StartedJob;

struct MYDIST_EXPORT InitOptions {
  int rank = 0;  // -1 with size 0: take the backend's own (MPI).
  int size = 1;
  // "mpi", or, when size is not 1: "auto", "local" (ranks of one host that share memory) or "gloo".
  std::string backend = "auto";
  BootstrapExchange exchange;  // See transport/factory.h; needed unless by mpi, or size is 1.
  std::vector<int> members{};  // Of a job of some of the started ranks; see transport/factory.h.
  std::vector<std::string> nccl_folders{};  // See NcclPlaces.
  int rank_ends = -1;  // mydistrun's descriptor; see world/rank_ends.h. Open as long as the job.
  // Where GPUs come from; null: libmydist_nccl.so, loaded when a tensor on one comes.
  DevicePlugin* devices = nullptr;
};

class MYDIST_EXPORT Job {
 public:
  // Connects to the peers and starts the engine. Blocking; collective over all ranks. `handles` may
  // outlive the Job, so that what was submitted to it can still be asked for. kInvalidArgument,
  // kMismatch and kVersionMismatch as process::Init.
  static Result<std::shared_ptr<Job>> Start(
      const InitOptions& options, Config config,
      std::shared_ptr<HandleTable> handles = std::make_shared<HandleTable>());
  // The same for ranks that are connected already.
  static Result<std::shared_ptr<Job>> Run(
      StartedJob started, const InitOptions& options, Config config,
      std::shared_ptr<HandleTable> handles = std::make_shared<HandleTable>());

  // Shuts down, if that has not been done.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // See process::FearForPeers.
  void FearForPeers() {
    if (heartbeat_ != nullptr) heartbeat_->Hurry();
  }

  // As process::Shutdown; further calls return the first one's outcome. One thread at a time.
  Status Shutdown(bool awaits_living = true, const std::function<bool()>& is_wanted = nullptr);

  Engine& engine() const { return *engine_; }
  const std::shared_ptr<HandleTable>& handles() const { return handles_; }
  const std::string& backend() const { return backend_; }
  DevicePlugin* devices() const { return devices_; }
  // What was chosen, and why.
  std::vector<Fact> Explain() const;

 private:
  Job() = default;
  void StartHeartbeat();
  // By the thread of the heartbeats: which ranks the others wait for.
  void TellStragglers();

  std::string backend_;
  std::string backend_reason_;
  DevicePlugin* devices_ = nullptr;
  std::shared_ptr<HandleTable> handles_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<StragglerWatch> stragglers_;  // Null: another rank watches, or none does.
  std::unique_ptr<Heartbeat> heartbeat_;        // Reports to the engine; null: none.
  bool is_over_ = false;
  Status outcome_;
};

// Process: the default Job of this process, what `import mydist` talks to.
// init and shutdown take turns; in between, calls only read a shared_ptr to the
// engine. A forked child finds itself uninitialised: engine threads and connections stay the
// parent's.

namespace process {

// Connects to the peers and starts the engine. Blocking; collective over all ranks. When already
// initialised: OK and nothing happens. kInvalidArgument for bad MYDIST_* values; kMismatch when the
// ranks are configured differently, kVersionMismatch when they run different builds, naming ranks.
// While another thread is in Shutdown it asks `is_wanted` now and then: false is kAborted, and ends
// that Shutdown, too.
MYDIST_EXPORT Status Init(const InitOptions& options,
                          const std::function<bool()>& is_wanted = nullptr);

// Leaves the job: waits until all ranks have left too, completes what is pending with kAborted and
// stops the engine. It waits Config::shutdown_drain for ranks that give no answer; for others until
// they leave, or, with `awaits_living` false, no longer either. It asks `is_wanted` now and then:
// false ends the wait, also that of another thread which is in Shutdown. OK when not initialised.
// kTimeout when a stuck collective had to be left behind: mydist is shut down, but the memory of
// tensors that were in flight may still be written and must never be freed.
MYDIST_EXPORT Status Shutdown(bool awaits_living = true,
                              const std::function<bool()>& is_wanted = nullptr);

MYDIST_EXPORT bool IsInitialized();

// kInvalidArgument "mydist has not been initialized; call mydist.init() first" outside init …
// shutdown.
MYDIST_EXPORT Result<std::shared_ptr<Job>> CurrentJob();

MYDIST_EXPORT Result<bool> Poll(Handle handle);
// Waits until complete and releases the handle, or gives nothing when `is_wanted`, asked once in
// each `interval` and without a lock, says that the caller does not want it any more. It must not
// throw. Works for handles of before a shutdown as well. May drive the engine on the calling
// thread, which must not hold the GIL; a batch that has begun is ended before it is asked.
MYDIST_EXPORT Result<std::optional<Status>> WaitWhile(Handle handle, Duration interval,
                                                      const std::function<bool()>& is_wanted);
MYDIST_EXPORT void Release(Handle handle);
// What has been in flight for longest: its operation, empty for what is no collective of tensors,
// and a name. Also outside init … shutdown, on any thread.
MYDIST_EXPORT std::optional<std::pair<std::string, std::string>> OldestInFlight();
// What this rank has completed last; nothing outside init … shutdown.
struct LastCompleted {
  std::string operation;  // Empty: it has completed none so far.
  std::string tensor;
  int64_t number = 0;  // Of what its process set has executed, from 1; 0 for a transfer.
  double ago = 0;      // In seconds.
};
MYDIST_EXPORT std::optional<LastCompleted> FindLastCompleted();
// What was submitted at another pace than kNow is due now.
MYDIST_EXPORT void Hurry();
// There is reason to fear that a rank has died, as when mpirun ends the job: heartbeats find out at
// once. Also outside init … shutdown, on any thread.
MYDIST_EXPORT void FearForPeers();

}  // namespace process

}  // namespace mydist
