#include "transport/gloo/gloo_control_plane.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "base/signal_block.h"
#include "world/departure.h"

namespace mydist {

GlooControlPlane::GlooControlPlane(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {
  const SignalBlock block;  // For the threads the receivers start.
  for (int peer = 0; peer < mesh_->size(); ++peer) {
    if (peer != mesh_->rank()) receivers_.push_back(std::make_unique<Receiver>(mesh_.get(), peer));
  }
}

Status GlooControlPlane::CheckPeer(int peer) {
  MYDIST_CHECK(peer >= 0 && peer < mesh_->size() && peer != mesh_->rank());
  if (mesh_->states().IsOpen(peer)) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(mesh_->states().loss());
  return PeerHasLeft(mesh_->Name(peer), mesh_->states().farewell(peer));
}

Status GlooControlPlane::Send(int peer, Bytes payload) {
  if (static_cast<int64_t>(payload.size()) > kMaxControlMessageBytes) {
    return Status::Internal("a control message of " + std::to_string(payload.size()) +
                            " bytes is longer than the limit of " +
                            std::to_string(kMaxControlMessageBytes) +
                            "; submit fewer tensors at once");
  }
  MYDIST_RETURN_IF_ERROR(CheckPeer(peer));
  return mesh_->outbox(peer).Send(FrameKind::kMessage, std::move(payload));
}

Result<std::optional<IncomingMessage>> GlooControlPlane::Receive() {
  return mesh_->mailbox().Take();
}

void GlooControlPlane::Await(TimePoint deadline) { mesh_->mailbox().Await(deadline); }

void GlooControlPlane::Wake() { mesh_->mailbox().Wake(); }

void GlooControlPlane::Attend(bool attended) { mesh_->mailbox().Attend(attended); }

Status GlooControlPlane::Close(TimePoint deadline) { return mesh_->SayGoodbye(deadline); }

}  // namespace mydist
