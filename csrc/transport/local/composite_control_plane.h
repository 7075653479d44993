// CompositeControlPlane: control messages of a job of several hosts: between ranks of one host
// through the memory they share, else over MPI or Gloo. Its waiting is that of the local plane; a
// thread of its own, the forwarder, waits for news from other hosts and wakes it.
// A rank of this host that is lost may be reported by both planes.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "transport/local/local_control_plane.h"

namespace mydist::local {

class CompositeControlPlane final : public ControlPlane {
 public:
  // `cross` reaches all ranks of the job. kInternal when a thread or descriptor is missing.
  static Result<std::unique_ptr<ControlPlane>> Open(std::unique_ptr<ControlPlane> cross,
                                                    std::shared_ptr<shm::ShmPort> port);
  ~CompositeControlPlane() override;

  Status Send(int peer, Bytes payload) override;
  Status CheckPeer(int peer) override;
  Result<std::optional<IncomingMessage>> Receive() override;
  void Await(TimePoint deadline) override;
  void Wake() override { local_->Wake(); }
  void Attend(bool attended) override;
  // Of a rank of this host.
  void Nudge(int peer) override { local_->Nudge(peer); }
  // The ranks of this host find it in the arena.
  void SetFarewell(const std::string& why) override { cross_->SetFarewell(why); }
  Status Close(TimePoint deadline) override;

 private:
  struct Found {
    Status status;  // Of a loss or failure; OK with a message.
    IncomingMessage message{};
  };

  CompositeControlPlane(std::unique_ptr<ControlPlane> cross,
                        std::unique_ptr<LocalControlPlane> local)
      : cross_(std::move(cross)), local_(std::move(local)) {}
  Status StartForwarder();
  void StopForwarder();
  void Forward();
  // Takes in what has come from other hosts. False when nothing more can come.
  bool TakeIn() MYDIST_EXCLUDES(mutex_);
  Result<std::optional<IncomingMessage>> ReceiveCross() MYDIST_EXCLUDES(mutex_);

  const std::unique_ptr<ControlPlane> cross_;
  const std::unique_ptr<LocalControlPlane> local_;
  bool is_cross_next_ = false;  // Whom Receive asks first.
  std::atomic<bool> is_attended_{false};
  std::atomic<bool> is_stopping_{false};
  Mutex mutex_;  // Of taking from cross_, so that messages stay in order.
  // What the forwarder has taken and nobody has received.
  std::deque<Found> found_ MYDIST_GUARDED_BY(mutex_);
  std::atomic<bool> has_found_{false};
  std::thread forwarder_;
};

}  // namespace mydist::local
