// Process: the default Job of this process, what `import mydist` talks to.
// init and shutdown take turns under one mutex; in between, calls only read a shared_ptr to the
// engine. A forked child finds itself uninitialised: engine threads and connections stay the
// parent's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/export.h"
#include "base/status.h"
#include "config/config.h"
#include "engine/engine.h"
#include "engine/handle_table.h"
#include "engine/submission.h"
#include "job/job.h"
#include "planner/bucket_plan.h"
#include "planner/device_path.h"
#include "world/process_set.h"
#include "world/topology.h"

namespace mydist {

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

// Everything below: kInvalidArgument "mydist has not been initialized; call mydist.init() first"
// outside init … shutdown.
MYDIST_EXPORT Result<Topology> GetTopology();
MYDIST_EXPORT Result<std::string> BackendName();

// A GPU, as this process counts them, to give tensors on it their DeviceOrder. Any thread.
// kInternal with the reason, as --check-build has it, where GPUs cannot be used.
MYDIST_EXPORT Result<std::shared_ptr<Device>> OpenGpu(int index);

// Enqueues tensors that complete together under one handle. Never waits for a peer.
// kInvalidArgument at once for a name already in flight (naming it) and for a process set that is
// unknown or has not this rank; the engine's sticky error, if it has failed. All or nothing: on
// error no tensor has been enqueued.
MYDIST_EXPORT Result<Handle> Submit(std::vector<Submission> tensors, Pace pace = Pace::kNow);
// This rank is out of data: until every rank has joined it takes part in whatever the others submit
// with elements that change nothing, and must submit nothing itself. The handle completes when all
// have; `on_numbers` is told the rank that joined last. kInvalidArgument for a second call
// meanwhile.
MYDIST_EXPORT Result<Handle> Join(NumbersCallback on_numbers);
// kInvalidArgument for a set that is unknown or has been removed.
MYDIST_EXPORT Result<ProcessSet> GetProcessSet(ProcessSetId id);
// At least `bytes` (more than 0) of memory that all ranks of this host can reach, so that tensors
// in it are reduced where they lie; aligned to 128 bytes. Any thread; without a word to the other
// ranks. It stays valid after shutdown, but only helps until then. OK and null when the ranks share
// no memory or, of which one rank of the host warns once with needed and free bytes, it is full:
// private memory does as well.
MYDIST_EXPORT Result<std::shared_ptr<uint8_t>> AllocateShared(int64_t bytes);
// This rank is going to ask for so many bytes (0 or more): warns already now if there is no room.
MYDIST_EXPORT Status ForeseeShared(int64_t bytes);
MYDIST_EXPORT Result<bool> Poll(Handle handle);
// Waits until complete and releases the handle, or gives nothing when `is_wanted`, asked once in
// each `interval` and without a lock, says that nobody wants it any more. It must not throw. Works
// for handles of before a shutdown as well. May drive the engine on the calling thread, which must
// not hold the GIL; a batch that has begun is ended before it is asked.
MYDIST_EXPORT Result<std::optional<Status>> WaitWhile(Handle handle, Duration interval,
                                                      const std::function<bool()>& is_wanted);
MYDIST_EXPORT void Release(Handle handle);
// What has been in flight for longest: its operation, empty for what is no collective of tensors,
// and a name. Also outside init … shutdown, on any thread.
MYDIST_EXPORT std::optional<std::pair<std::string, std::string>> OldestInFlight();
// What was submitted at another pace than kNow is due now.
MYDIST_EXPORT void Hurry();

// Rank 0 decides for the whole job and waits until the switch has taken effect; other ranks' calls
// return OK and have no effect. A path that cannot be written is one warning in the log.
MYDIST_EXPORT Status StartTimeline(const std::string& path, bool mark_cycles);
MYDIST_EXPORT Status StopTimeline();
MYDIST_EXPORT Result<EngineStats> Stats();

// What init() measured; see planner/bucket_plan.h.
MYDIST_EXPORT Result<PathCosts> Costs();
MYDIST_EXPORT Result<Config> GetConfig();
// What was chosen for this job, and why.
MYDIST_EXPORT Result<std::vector<Fact>> Explain();

}  // namespace process

}  // namespace mydist
