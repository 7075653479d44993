// Config: every knob of the core as one struct. FromEnv is the only place that reads the
// environment; everything else gets a const Config&. Documented in docs/configuration.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/status.h"

namespace mydist {

struct MYDIST_EXPORT Config {
  // MYDIST_FUSION_THRESHOLD_MB: tensors are fused until a buffer holds this much; 0 = never fuse.
  int64_t fusion_threshold_bytes = int64_t{64} << 20;
  // MYDIST_CACHE_CAPACITY: tensors whose agreement is remembered; 0 = negotiate every time.
  int64_t cache_capacity = 1024;
  // MYDIST_COORDINATOR_RADIX: children per vertex of the coordinator tree.
  int64_t coordinator_radix = 32;
  // MYDIST_FREEZE_AFTER: equal steps (1 counts as 2) after which negotiation rests until a rank
  // deviates; 0 = never.
  int64_t freeze_after = 10;
  // MYDIST_STALL_WARNING_SECONDS: a rank that waits for others for this long says so; 0 = off.
  std::chrono::milliseconds stall_warning{10000};
  // MYDIST_STALL_SHUTDOWN_SECONDS: … and fails the job after this long; 0 = never.
  std::chrono::milliseconds stall_shutdown{0};
  // MYDIST_HEARTBEAT_TIMEOUT_SECONDS: a rank that gives no sign of life for this long is lost; 0 =
  // no heartbeats.
  std::chrono::milliseconds heartbeat_timeout{10000};
  // MYDIST_SHUTDOWN_SECONDS: how long shutdown() waits for ranks that give no answer.
  std::chrono::milliseconds shutdown_drain{5000};
  // MYDIST_TIMEOUT_SECONDS: how long connecting to peers may take.
  std::chrono::milliseconds connect_timeout{30000};
  // MYDIST_TIMELINE: path of the timeline file; empty = none.
  std::string timeline_path;
  // MYDIST_TIMELINE_MARK_CYCLES: also record every engine cycle.
  bool timeline_mark_cycles = false;
  // MYDIST_FLIGHT_RECORDER_DIR: folder for the last operations of each rank when something goes
  // wrong; empty = none.
  std::string flight_recorder_folder;
  // MYDIST_STALL_STACK: a rank that others wait for prints its stacks. Python acts on it.
  bool stall_stack = false;
  // MYDIST_CONTROLLER: auto or the name of a transport; see transport/registry.h.
  std::string controller = "auto";
  // MYDIST_ALGORITHM: auto or the name of an algorithm, which is tried first; see
  // algorithms/registry.h.
  std::string algorithm = "auto";
  // MYDIST_PLUGINS: files of extensions, which add transports, algorithms and settings; see
  // job/extension.h.
  std::vector<std::string> plugins;
  // MYDIST_NETWORK_INTERFACES: comma-separated names, first usable wins; empty = by route.
  std::vector<std::string> network_interfaces;
  // MYDIST_HIERARCHICAL_ALLREDUCE: hosts first, then between them; unset = as shared_memory, for
  // tensors on GPUs where a host has several ranks.
  std::optional<bool> hierarchical_allreduce;
  // MYDIST_SHARED_MEMORY: ranks of one host talk and reduce through shared memory.
  bool shared_memory = true;
  // MYDIST_SIMD: the kernels that reduce: auto, avx512, avx2 or portable. Changes speed only.
  std::string simd = "auto";
  // MYDIST_CROSS_MEMORY_ATTACH: ranks of one host read each other's private tensors through the
  // kernel; unset = where that is faster.
  std::optional<bool> cross_memory_attach;
  // MYDIST_BUCKET_SIZE_MB: gradients are enqueued when they make this much; 0 = each by itself,
  // unset = chosen from what init() measures.
  std::optional<int64_t> bucket_size_bytes;
  // MYDIST_CHECK_CONSISTENCY: parameters are compared between ranks at the first step and every
  // this many steps after; 0 = at the first step only, -1 = never. Python acts on it.
  int64_t check_consistency_steps = 0;
  // MYDIST_CHECK_FINITE: a reduction whose input has NaN or infinite values fails on all ranks.
  bool check_finite = false;
  // MYDIST_SERVERS: in how many of the first ranks a parameter server runs, where mydistrun starts
  // none. Python acts on it.
  int64_t servers = 1;
  // MYDIST_PS_PIECE_KB: a dense table of the parameter server is cut into pieces of this much.
  int64_t ps_piece_kilobytes = 1024;
  // MYDIST_PS_IN_FLIGHT_MB: what a worker may have on its way to a server.
  int64_t ps_in_flight_megabytes = 16;
  // MYDIST_PS_THREADS: that serve the workers of a server; 0 = half of the cores.
  int64_t ps_threads = 0;
  // MYDIST_NCCL_LIBRARY: the file of the NCCL to use; empty = that of this process, of an installed
  // package or of the system.
  std::string nccl_library;
  // MYDIST_LOG_LEVEL: trace, debug, info, warning, error, off.
  LogLevel log_level = LogLevel::kWarning;
  // MYDIST_HOST_ID: what identifies this host; empty = its hostname.
  std::string host_id;
  // Where the ranks meet, without the port: the host in MYDIST_RENDEZVOUS, else MASTER_ADDR; set by
  // launchers, no knob. Empty = unknown. Backends take the network that leads there.
  std::string meeting_host;
  // NCCL's own variables, no knobs: NCCL_MULTI_RANK_GPU_ENABLE is 1 and NCCL_NVLS_ENABLE is 0, so
  // ranks may share a GPU from NCCL 2.30.3 on; NCCL_COMM_BLOCKING is 1, so its calls wait for other
  // ranks whatever we ask for; and NCCL_HOSTID, what NCCL takes for the host; empty = its own idea.
  bool nccl_shares_gpus = false;
  bool nccl_blocks = false;
  std::string nccl_host_id;

  // MYDIST_FAILPOINT, no knob: what a test lets happen to this rank. Only builds with the CMake
  // option MYDIST_FAILPOINTS accept it.
  std::optional<Failpoint> failpoint;

  // Settings that extensions have added: variable → value, of those that are set.
  std::map<std::string, std::string> extra;

  // kInvalidArgument naming variable, value and allowed range when one is malformed.
  static Result<Config> FromEnv();
  // The same over any source of variables, for tests: name → value, nothing when unset.
  using Lookup = std::function<std::optional<std::string>(const std::string& name)>;
  static Result<Config> From(const Lookup& lookup);

  // The settings that must be equal on all ranks, as "name=value" lines; compared at init.
  std::string Digest() const;
  // What identifies this host to other ranks: host_id, or its hostname.
  std::string HostId() const;
};

// A row of the documentation table; also read by the test that compares code and docs.
struct Knob {
  std::string variable;
  std::string allowed;
  std::string default_value;
};
// Ours; those of extensions follow.
MYDIST_EXPORT std::vector<Knob> Knobs();

// A setting of an extension. Its value is in Config::extra.
struct ExtraKnob {
  Knob knob;
  std::function<bool(const std::string& text)> is_allowed;
  bool is_same_everywhere = true;  // Ranks with different values are refused at init.
};
// Adds one. kInvalidArgument when the variable is taken or does not begin with MYDIST_.
MYDIST_EXPORT Status RegisterKnob(ExtraKnob knob);

// One warning for each MYDIST_* variable among `names` that is neither a knob nor a variable of the
// launcher or the build: it says what happens instead of one that was a knob once, or names the
// knob that was probably meant.
MYDIST_EXPORT std::vector<std::string> UnknownVariables(const std::vector<std::string>& names);
// The same for the variables of this process, on rank 0, where mydistrun has not warned.
MYDIST_EXPORT std::vector<std::string> UnknownVariables();

}  // namespace mydist
