// ControlPort: the coordinator's way to the control plane; with a single rank, which has none, a
// place to sleep. Owned by the Coordinator; all methods but Await and Wake by the thread that
// drives the engine.
// Takes messages in, counts what passes, and decides when the loss of a peer is an error.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "controller/negotiator.h"
#include "transport/control_plane.h"

namespace mydist {

// Counted since construction.
struct CoordinatorStats : NegotiatorStats {
  int64_t control_messages_sent = 0;
  int64_t control_messages_received = 0;
  int64_t control_bytes_sent = 0;
  int64_t frozen_steps = 0;  // Whole steps of a frozen schedule, without negotiation.
  int64_t thaws = 0;         // Times the schedule went back to negotiation.
  // Of the control messages: the words for buckets of a frozen schedule, one per bucket and other
  // host. Only the lowest rank of a host sends and takes them.
  int64_t host_votes_sent = 0;
  int64_t host_votes_received = 0;
};

class ControlPort {
 public:
  // `plane` is null for a single rank, else outlives the port.
  explicit ControlPort(ControlPlane* plane) : plane_(plane) {}

  // Takes in what is there. Never blocks.
  Status Exchange(TimePoint now);
  // When to come again even without news.
  TimePoint NextDeadline() const;
  // As those of ControlPlane.
  void Await(TimePoint deadline);
  void Attend(bool attended);
  bool HasMessages() const { return !inbox_.empty(); }
  const std::vector<IncomingMessage>& messages() const { return inbox_; }
  std::vector<IncomingMessage> TakeMessages() { return std::exchange(inbox_, {}); }
  // Those that may overtake the others, in order; the others stay.
  std::vector<IncomingMessage> TakeInquiries();

  Status Send(int peer, Bytes payload) { return Judge(Post(peer, std::move(payload))); }
  // To one that may be gone, which is no loss to anybody.
  Status SendIfThere(int peer, Bytes payload);
  void Wake();

  // Of an error of the plane, or a loss that is known by other means: what it means for the job.
  Status Judge(Status status);

  // Ranks are leaving: from now on a lost peer is an error only if the job does not finish soon.
  void ExpectLosses() { expects_losses_ = true; }
  // Every rank has left: a lost peer is no error any more.
  void Finish() { finished_ = true; }

  CoordinatorStats& stats() { return stats_; }
  const CoordinatorStats& stats() const { return stats_; }

 private:
  Status Post(int peer, Bytes payload);
  Status CheckGrace(TimePoint now);
  void Sleep(TimePoint deadline);
  Result<bool> ReceiveOne();

  ControlPlane* const plane_;
  std::vector<IncomingMessage> inbox_;
  bool expects_losses_ = false;
  bool finished_ = false;
  Status loss_;                         // Held back until grace_end_.
  std::optional<TimePoint> grace_end_;  // Set by the first Exchange after the loss.
  // Of messages in the inbox, from when they were first seen there after the loss.
  std::optional<TimePoint> unread_end_;
  CoordinatorStats stats_;

  Mutex mutex_;
  CondVar woken_condition_;
  bool woken_ MYDIST_GUARDED_BY(mutex_) = false;
};

}  // namespace mydist
