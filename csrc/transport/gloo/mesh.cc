#include "transport/gloo/mesh.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "world/departure.h"

namespace mydist {

Mesh::Mesh(std::unique_ptr<GlooContext> context, std::vector<std::string> places)
    : context_(std::move(context)), places_(std::move(places)), states_(context_->size()) {
  for (int peer = 0; peer < size(); ++peer) {
    outboxes_.push_back(std::make_unique<Outbox>(context_.get(), peer));
  }
}

std::string Mesh::Name(int peer) const {
  return "rank " + std::to_string(peer) + " (" + places_[static_cast<size_t>(peer)] + ")";
}

void Mesh::ReportLoss(int peer, const Status& reason) {
  if (states_.MarkLost(peer, reason)) mailbox_.PutLoss(reason);
}

Status Mesh::SayGoodbye(TimePoint deadline) {
  const int cause_rank = states_.cause_rank();
  const Status loss = states_.loss();
  std::string why = loss.ok() ? farewell_ : FarewellWords(loss);
  why.resize(std::min(why.size(), kMaxFarewellBytes));
  const Bytes words(why.begin(), why.end());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Status sent = outbox(peer).Send(FrameKind::kGoodbye, words, cause_rank);
    if (!sent.ok()) {
      MYDIST_LOG(kDebug) << "cannot send a goodbye to " << Name(peer) << ": " << sent.message();
    }
  }
  if (!states_.AwaitAllEnded(rank(), deadline)) {
    return Status::Timeout(
        "rank(s) " + states_.OpenRanks(rank()) +
        " did not close their connections in time; they may be busy or stopped. See their output.");
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && states_.loss().ok()) {
      MYDIST_RETURN_IF_ERROR(outbox(peer).Flush(deadline));
    }
  }
  return states_.loss();
}

void Mesh::Break() {
  const Status farewell = SayGoodbye(Now() + kBreakGrace);
  MYDIST_LOG(kDebug) << "dropping all connections: " << farewell.ToString();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    context_->ClosePair(peer);
    states_.MarkDeparted(peer, "");  // No wait for its goodbye any more.
  }
}

}  // namespace mydist
