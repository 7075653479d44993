// LocalControlPlane: ControlPlane among the ranks of one host, through their arena (negotiate).
// Nothing polls and nothing has to be installed. Ranks are those of the job; only those of this
// host can be reached. See docs/decisions/0010-local-control-plane.md.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "transport/control_plane.h"
#include "transport/local/control_ring.h"
#include "transport/local/outbox.h"
#include "transport/local/peer_watcher.h"
#include "transport/shm_transport.h"

namespace mydist::local {

class LocalControlPlane final : public ControlPlane {
 public:
  // The port's arena has room for the plane and no other uses it. kInternal when a thread or
  // descriptor is missing.
  static Result<std::unique_ptr<LocalControlPlane>> Open(std::shared_ptr<shm::ShmPort> port);
  // Without Close before, the peers take this rank for lost.
  ~LocalControlPlane() override;

  // Whether `rank` of the job is on this host, ourselves included.
  bool Reaches(int rank) const;
  Status Send(int peer, Bytes payload) override;
  Status CheckPeer(int peer) override;
  Result<std::optional<IncomingMessage>> Receive() override;
  void Await(TimePoint deadline) override;
  void Wake() override;
  void Attend(bool attended) override;
  void Nudge(int peer) override;
  Status Close(TimePoint deadline) override;

 private:
  struct Peer {
    Peer(const ControlMemory& memory, int self, int index) : stream(memory, self, index) {}

    IncomingStream stream;
    std::atomic<bool> has_ended{false};  // Its process; set by the watcher.
    std::atomic<bool> is_over{false};    // Its loss has been reported.
  };

  explicit LocalControlPlane(std::shared_ptr<shm::ShmPort> port);

  Result<std::optional<Bytes>> ReceiveFrom(int index);
  // Whether a peer went without a goodbye.
  bool IsLost(int index) const;
  bool HasNews() const;
  void RingOwn(uint32_t waiting);
  void HandleEnd(int index);
  Status Lost(int index);
  // A lost peer, if there is one that nobody has heard of: the cause of others having left.
  Status FindCause();
  // Takes what comes in while closing, as peers may wait for the room.
  void Discard();
  void Leave(PlaneState state);
  std::string Name(int index) const;

  const std::shared_ptr<shm::ShmPort> port_;
  const ControlMemory memory_;
  const int index_;
  std::vector<std::unique_ptr<Peer>> peers_;  // Null for ourselves.
  uint32_t seen_rings_ = 0;                   // Of the own bell, by Await.
  int next_ = 0;                              // Whom Receive looks at first.
  Status loss_;                               // The first one reported.
  bool is_closed_ = false;
  std::atomic<bool> is_woken_{false};
  Outbox outbox_;
  std::unique_ptr<PeerWatcher> watcher_;  // Last: its thread uses all of the above.
};

}  // namespace mydist::local
