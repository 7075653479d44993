// A control plane and a transport that pass everything on: bases of those that change one call.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "transport/control_plane.h"
#include "transport/transport.h"

namespace mydist::testing {

class ForwardingPlane : public ControlPlane {
 public:
  explicit ForwardingPlane(std::unique_ptr<ControlPlane> inner) : inner_(std::move(inner)) {}

  Status Send(int peer, Bytes payload) override { return inner_->Send(peer, std::move(payload)); }
  Status CheckPeer(int peer) override { return inner_->CheckPeer(peer); }
  Result<std::optional<IncomingMessage>> Receive() override { return inner_->Receive(); }
  void Await(TimePoint deadline) override { inner_->Await(deadline); }
  void Wake() override { inner_->Wake(); }
  void Attend(bool attended) override { inner_->Attend(attended); }
  void Nudge(int peer) override { inner_->Nudge(peer); }
  void SetFarewell(const std::string& why) override { inner_->SetFarewell(why); }
  Status Close(TimePoint deadline) override { return inner_->Close(deadline); }

 private:
  const std::unique_ptr<ControlPlane> inner_;
};

class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void SetWatchdog(Watchdog* watchdog) override { inner_->SetWatchdog(watchdog); }
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    return inner_->Exchange(sends, receives);
  }

 private:
  const std::unique_ptr<Transport> inner_;
};

}  // namespace mydist::testing
