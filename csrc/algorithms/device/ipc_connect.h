// ConnectIpc: how ranks of one host come to an IpcLink: each exports a board, all open all, and it
// counts only when every rank could. Called by whoever drives the engine.
#pragma once

#include <memory>
#include <string>

#include "algorithms/device/device_link.h"
#include "algorithms/device/ipc_link.h"
#include "base/export.h"
#include "base/result.h"

namespace mydist {

struct IpcConnection {
  std::shared_ptr<IpcLink> link;  // Null on all ranks or on none.
  std::string why_not;            // The same on all ranks; empty: there is a link.
};

// Two to kMaxIpcRanks ranks, each in a process of its own. `is_asked_for`, the same on all ranks:
// also on a GPU that ends kernels which wait for long. Blocks until all have called it. What a GPU
// cannot do is a reason, not an error; errors of peers.exchange.
MYDIST_EXPORT Result<IpcConnection> ConnectIpc(const DevicePeers& peers, bool is_asked_for);

}  // namespace mydist
