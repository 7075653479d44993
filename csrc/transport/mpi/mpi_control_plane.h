// MpiControlPlane: ControlPlane over MPI point-to-point messages. Sends are non-blocking with kept
// buffers. MPI has no receive that Wake could interrupt, so Await looks again and again, with
// pauses that grow to kLongestPause while nothing comes; a pause ends at once on Wake. It leaves
// the looking for messages to others while attended. What it finds Receive returns.
#pragma once

#include <mpi.h>

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "transport/control_plane.h"
#include "transport/mpi/mpi_world.h"
#include "transport/mpi/poll_backoff.h"

namespace mydist {

class MpiControlPlane final : public ControlPlane {
 public:
  explicit MpiControlPlane(std::shared_ptr<MpiWorld> world);
  ~MpiControlPlane() override;
  MpiControlPlane(const MpiControlPlane&) = delete;
  MpiControlPlane& operator=(const MpiControlPlane&) = delete;

  Status Send(int peer, Bytes payload) override;
  Status CheckPeer(int peer) override;
  Result<std::optional<IncomingMessage>> Receive() override;
  void Await(TimePoint deadline) override;
  void Wake() override;
  void Attend(bool attended) override;
  void SetFarewell(const std::string& why) override {
    farewell_ = why.substr(0, kMaxFarewellBytes);
  }
  Status Close(TimePoint deadline) override;

 private:
  static constexpr Duration kEager = std::chrono::microseconds(50);
  static constexpr Duration kLongestPause = std::chrono::milliseconds(1);
  static constexpr int kMessageTag = 1;

  struct Outgoing {
    MPI_Request request = MPI_REQUEST_NULL;
    Bytes payload;  // Belongs to MPI until the request completes.
  };
  struct Arriving {
    MPI_Request request = MPI_REQUEST_NULL;
    IncomingMessage message;
  };

  Status Post(int peer, int tag, Bytes payload) MYDIST_REQUIRES(mpi_mutex_);
  Status ReapOutgoing() MYDIST_REQUIRES(mpi_mutex_);
  // Lets MPI work, and returns a message that is complete. Never blocks.
  Result<std::optional<IncomingMessage>> Poll() MYDIST_REQUIRES(mpi_mutex_);
  Status MatchNext() MYDIST_REQUIRES(mpi_mutex_);
  bool IsAttended() MYDIST_EXCLUDES(mutex_);
  // Whether Receive has something to return. Looks for it, unless attended; then it only lets MPI
  // go on with what is being sent.
  bool HasNews() MYDIST_EXCLUDES(mpi_mutex_, mutex_);
  // Pauses after a look that found nothing. False when Await is to return.
  bool Pause(TimePoint deadline) MYDIST_EXCLUDES(mutex_);
  int PresentPeers() const;

  const std::shared_ptr<MpiWorld> world_;
  std::string farewell_;  // As long as kMaxFarewellBytes at most.

  Mutex mpi_mutex_;  // Held while MPI works, which may move megabytes: never by Wake.
  std::list<Outgoing> outgoing_ MYDIST_GUARDED_BY(mpi_mutex_);
  // Matched, not complete: the next message to return.
  std::unique_ptr<Arriving> arriving_ MYDIST_GUARDED_BY(mpi_mutex_);
  // Found by Await: at most one of them.
  std::optional<IncomingMessage> found_ MYDIST_GUARDED_BY(mpi_mutex_);
  Status failure_ MYDIST_GUARDED_BY(mpi_mutex_);

  PollBackoff backoff_;
  Mutex mutex_;
  CondVar changed_;
  bool woken_ MYDIST_GUARDED_BY(mutex_) = false;
  bool attended_ MYDIST_GUARDED_BY(mutex_) = false;
};

}  // namespace mydist
