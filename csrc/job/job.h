// Job: one job as one rank takes part in it: its engine, its handles, and what it talks over.
// A process may have several at once, of other ranks or connected by other means, or one after the
// other: nothing of a Job is shared but its HandleTable, which Jobs may have one after the other
// only. Handles are numbered by their table. Any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/device/device_plugin.h"
#include "base/export.h"
#include "base/status.h"
#include "config/config.h"
#include "engine/engine.h"
#include "engine/handle_table.h"
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

  std::string backend_;
  std::string backend_reason_;
  DevicePlugin* devices_ = nullptr;
  std::shared_ptr<HandleTable> handles_;
  std::shared_ptr<Engine> engine_;
  bool is_over_ = false;
  Status outcome_;
};

}  // namespace mydist
