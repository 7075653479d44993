// ConnectIpc: how ranks of one host come to an IpcLink: each exports a board, all open all, and it
// counts only when every rank could. Called by whoever drives the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "algorithms/device/device_link.h"
#include "algorithms/device/ipc_link.h"
#include "base/clock.h"
#include "base/export.h"
#include "base/status.h"

namespace mydist {

struct IpcConnection {
  std::shared_ptr<IpcLink> link;  // Null on all ranks or on none.
  std::string why_not;            // The same on all ranks; empty: there is a link.
};

// Two to kMaxIpcRanks ranks, each in a process of its own. `is_asked_for`, the same on all ranks:
// also on a GPU that ends kernels which wait for long. Blocks until all have called it. What a GPU
// cannot do is a reason, not an error; errors of peers.exchange.
MYDIST_EXPORT Result<IpcConnection> ConnectIpc(const DevicePeers& peers, bool is_asked_for);

// IpcTrial: whether what ranks write to each other's GPUs arrives there. That the driver lets one
// open a board says little: in some virtual machines, and behind some IOMMUs, writes go nowhere, so
// a rank waits for ever for a write though no rank is lost; or reads find other bytes. The thread
// that drives the engine runs it once, before a link serves; its sums are compared with the host's.

// So many bytes keep all blocks busy, also where eight ranks have a slice each: all flags are used.
inline constexpr int64_t kIpcTrialBytes = int64_t{1} << 20;
// Far more than two sums take on GPUs that are busy.
inline constexpr Duration kIpcTrialPatience = std::chrono::seconds(10);

struct IpcTrial {
  IpcLink* link = nullptr;
  StreamSeat seat{};
  Collectives* exchange = nullptr;  // Of the link's ranks, for host memory.
  Status prepared{};                // Why this rank has no memory for it; OK: it has.
  uint8_t* memory = nullptr;        // Of the device: kIpcTrialBytes of any content, which is lost.
  uint8_t* pinned = nullptr;        // As much of the host's.
  // For what is on the stream already, and then, from when all ranks are there, for two sums.
  Duration patience = kIpcTrialPatience;
};

// Why the link is of no use, the same text on all ranks; empty: it is. Where it is not, the kernel
// may still wait on the stream, with both memories: the link has to be aborted. Blocks until all
// ranks have called it. Errors of `exchange`, and what the seat's watch says.
MYDIST_EXPORT Result<std::string> TryIpcLink(const IpcTrial& trial);

}  // namespace mydist
