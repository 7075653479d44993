// GlooControlPlane: ControlPlane over a Gloo mesh. Sends go out on the caller's thread, one
// receiver thread per peer fills the mailbox, Await waits for the mailbox only; nothing polls.
#pragma once

#include <memory>
#include <vector>

#include "transport/control_plane.h"
#include "transport/gloo/mesh.h"
#include "transport/gloo/receiver.h"

namespace mydist {

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
