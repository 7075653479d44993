// GlooTransport: Transport over a Gloo mesh. Posts all transfers, then waits for each; all use one
// slot, in which Gloo keeps the order per pair of ranks. A slow peer is not a dead one: only the
// watchdog ends a wait for it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "transport/control_plane.h"
#include "transport/gloo/mesh.h"
#include "transport/gloo/receiver.h"
#include "transport/gloo/wait_ticker.h"
#include "transport/transport.h"

namespace mydist {

class GlooTransport final : public Transport {
 public:
  explicit GlooTransport(std::shared_ptr<Mesh> mesh)
      : mesh_(std::move(mesh)), ticker_(kLookInterval, [this] { mesh_->states().Interrupt(); }) {}

  int rank() const override { return mesh_->rank(); }
  int size() const override { return mesh_->size(); }
  void SetWatchdog(Watchdog* watchdog) override { watchdog_ = watchdog; }
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override;

  // Longest piece a transfer is sent in; must be the same on all ranks. Process-wide, for tests.
  static std::atomic<int64_t> chunk_bytes;

 private:
  struct Posted {
    int peer = -1;
    GlooBuffer buffer;
    int64_t pieces = 0;
    bool is_receive = false;
  };

  Status PostAll(std::span<const SendTransfer> sends, std::span<const ReceiveTransfer> receives);
  void Post(int peer, void* data, int64_t bytes, bool is_receive);
  Status AwaitAll();
  Status AwaitPiece(Posted& posted);
  // False: interrupted. Throws when the connection breaks.
  static bool AwaitOrInterrupted(Posted& posted);
  // It goes on no longer: says goodbye with the reason.
  Status GiveUp(const Status& error);
  // A transfer with `peer` failed: what is reported of it.
  Status ReportLoss(int peer, const char* what);
  // Never OK. The connection to `peer` broke: waits for what its receiver thread knows about the
  // cause.
  Status Verdict(int peer, const char* what);

  const std::shared_ptr<Mesh> mesh_;
  Watchdog* watchdog_ = nullptr;
  std::vector<Posted> posted_;  // Empty between calls; kept for its memory.
  WaitTicker ticker_;           // The last: its thread uses the mesh.
};

// GlooControlPlane: ControlPlane over a Gloo mesh. Sends go out on the caller's thread, one
// receiver thread per peer fills the mailbox, Await waits for the mailbox only; nothing polls.

class GlooControlPlane final : public ControlPlane {
 public:
  explicit GlooControlPlane(std::shared_ptr<Mesh> mesh);

  Status Send(int peer, Bytes payload) override;
  Status CheckPeer(int peer) override;
  Result<std::optional<IncomingMessage>> Receive() override;
  void Await(TimePoint deadline) override;
  void Wake() override;
  void Attend(bool attended) override;
  void SetFarewell(const std::string& why) override { mesh_->SetFarewell(why); }
  Status Close(TimePoint deadline) override;

 private:
  const std::shared_ptr<Mesh> mesh_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
};

}  // namespace mydist
