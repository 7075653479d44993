// MpiWorld: the communicators of one connection, duplicates of MPI_COMM_WORLD that return errors
// instead of aborting: one for control messages, one for tensors, so neither can match the other.
// Owned jointly by both planes; the last one frees it.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "backends/mpi/mpi_session.h"
#include "base/clock.h"
#include "base/result.h"
#include "controller/control_plane.h"

namespace mydist {

class MpiWorld {
 public:
  // Collective. kTimeout when not all ranks have called it by `deadline`.
  static Result<std::shared_ptr<MpiWorld>> Connect(MpiSession* session, TimePoint deadline);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return session_->world_rank(); }
  int size() const { return session_->world_size(); }
  MPI_Comm control() const { return control_; }
  MPI_Comm tensors() const { return tensors_; }

  // Every rank's blob to every rank. Collective and blocking; over the control communicator.
  Result<std::vector<Bytes>> Gather(const Bytes& mine);

  // Goodbyes are the control plane's last messages. Both planes look for them: a transfer with a
  // rank that has left never ends. Called by the engine's thread only.
  static constexpr int kGoodbyeTag = 2;
  void MarkDeparted(int peer) { departed_[static_cast<size_t>(peer)] = true; }
  bool HasDeparted(int peer) const { return departed_[static_cast<size_t>(peer)]; }
  // Whether its goodbye has been taken, or is there to be taken.
  Result<bool> HasSaidGoodbye(int peer) const;
  int departed_count() const;

  // All ranks have said goodbye, so the communicators may be freed.
  void MarkClosed() { closed_ = true; }

 private:
  explicit MpiWorld(MpiSession* session)
      : session_(session), departed_(static_cast<size_t>(session->world_size()), false) {}
  Status Duplicate(TimePoint deadline);

  MpiSession* const session_;
  MPI_Comm control_ = MPI_COMM_NULL;
  MPI_Comm tensors_ = MPI_COMM_NULL;
  std::vector<bool> departed_;
  bool closed_ = false;
};

}  // namespace mydist
