// Mesh: everything the two planes of one Gloo job share: the connections, what is known about the
// peers, the frames on their way out and the mailbox of those that came in.
// Owned jointly by control plane and transport; the last one closes the connections. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/gloo/gloo_context.h"
#include "transport/gloo/mailbox.h"
#include "transport/gloo/outbox.h"
#include "transport/gloo/peer_states.h"

namespace mydist {

class Mesh {
 public:
  // `places` says for every rank where it runs, e.g. "host a, pid 17"; for messages.
  Mesh(std::unique_ptr<GlooContext> context, std::vector<std::string> places);

  int rank() const { return context_->rank(); }
  int size() const { return context_->size(); }
  GlooContext& context() { return *context_; }
  PeerStates& states() { return states_; }
  Mailbox& mailbox() { return mailbox_; }
  Outbox& outbox(int peer) { return *outboxes_[static_cast<size_t>(peer)]; }

  // "rank 3 (host a, pid 17)"
  std::string Name(int peer) const;

  // Records a loss, tells the engine (once per peer) and interrupts its transfers.
  void ReportLoss(int peer, const Status& reason);

  // What SayGoodbye gives as the reason where no connection was lost. Called by its caller.
  void SetFarewell(const std::string& why) { farewell_ = why; }

  // Tells every open peer that we leave, and why unless it is the job's end; then waits until all
  // have said goodbye too and our messages are out. kTimeout naming the ranks that did not, or the
  // loss.
  Status SayGoodbye(TimePoint deadline);

  // After a failed transfer the connections are unusable: says goodbye with the cause, so that the
  // peers blame the right rank and not us, and drops all connections. Bounded by kBreakGrace.
  void Break();

 private:
  static constexpr std::chrono::milliseconds kBreakGrace{200};

  const std::unique_ptr<GlooContext> context_;
  const std::vector<std::string> places_;
  PeerStates states_;
  Mailbox mailbox_;
  std::string farewell_;
  std::vector<std::unique_ptr<Outbox>> outboxes_;  // Element rank() is unused.
};

}  // namespace mydist
