// OneHostControlPlane: control messages of a job of one host that MPI or Gloo has connected: all go
// through the memory that its ranks share, where they can wake each other. The connection carries
// nothing any more; it is kept because it wants an orderly end.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "transport/local/local_control_plane.h"

namespace mydist::local {

class OneHostControlPlane final : public ControlPlane {
 public:
  OneHostControlPlane(std::unique_ptr<ControlPlane> connection,
                      std::unique_ptr<LocalControlPlane> local)
      : connection_(std::move(connection)), local_(std::move(local)) {}

  Status Send(int peer, Bytes payload) override { return local_->Send(peer, std::move(payload)); }
  Status CheckPeer(int peer) override { return local_->CheckPeer(peer); }
  Result<std::optional<IncomingMessage>> Receive() override { return local_->Receive(); }
  void Await(TimePoint deadline) override { local_->Await(deadline); }
  void Wake() override { local_->Wake(); }
  void Attend(bool attended) override { local_->Attend(attended); }
  void Nudge(int peer) override { local_->Nudge(peer); }
  void SetFarewell(const std::string& why) override { connection_->SetFarewell(why); }
  Status Close(TimePoint deadline) override {
    const Status local = local_->Close(deadline);
    const Status connection = connection_->Close(deadline);
    return local.ok() ? connection : local;
  }

 private:
  const std::unique_ptr<ControlPlane> connection_;
  const std::unique_ptr<LocalControlPlane> local_;
};

}  // namespace mydist::local
