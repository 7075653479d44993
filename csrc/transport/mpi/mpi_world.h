// MpiWorld: the communicators of one connection, duplicates of MPI_COMM_WORLD, or of one of some of
// its ranks, that return errors instead of aborting: one for control messages, one for tensors, so
// neither can match the other. Owned jointly by both planes; the last one frees it.
#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "transport/control_plane.h"
#include "transport/mpi/transfer_counts.h"

namespace mydist {

// Turns an MPI error code into a Status that names the call and what MPI says about it.
Status MpiStatus(int code, const std::string& call);

#define MYDIST_RETURN_IF_MPI_ERROR(call) MYDIST_RETURN_IF_ERROR(::mydist::MpiStatus((call), #call))

// MpiSession: the process's one MPI, initialised on first use or taken over from the user's program
// (mpi4py), and kept until the process ends, because MPI cannot be initialised twice.
// Never destroyed. Thread-safe.
class MpiSession {
 public:
  // kInternal when MPI is finalised already or has no MPI_THREAD_MULTIPLE; kTimeout when it has not
  // started by then, as a rank does not come to its start.
  static Result<MpiSession*> Get(TimePoint deadline);

  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }

  // Connections report their lives: at exit MPI is finalised only when all of them were closed in
  // an orderly way. After a failure the peers may never come to MPI_Finalize, and waiting for them
  // would hang; leaving without it makes mpirun end the job.
  void NoteOpened() MYDIST_EXCLUDES(mutex_);
  void NoteClosed() MYDIST_EXCLUDES(mutex_);

 private:
  MpiSession() = default;
  static Status Start(MpiSession* session, TimePoint deadline);
  static void FinalizeAtExit();

  int world_rank_ = 0;
  int world_size_ = 1;
  Mutex mutex_;
  int open_count_ MYDIST_GUARDED_BY(mutex_) = 0;
};

class MpiWorld {
 public:
  // Collective over `members`, ranks of MPI_COMM_WORLD of which this process is one; empty: over
  // all. `meeting`: see BackendOptions. kTimeout when not all of them have called it by `deadline`.
  static Result<std::shared_ptr<MpiWorld>> Connect(MpiSession* session,
                                                   const std::vector<int>& members, int meeting,
                                                   TimePoint deadline);
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm control() const { return control_; }
  MPI_Comm tensors() const { return tensors_; }

  // Every rank's blob to every rank. Collective and blocking; over the control communicator.
  // kTimeout when not all of them have called it by `deadline`.
  Result<std::vector<Bytes>> Gather(const Bytes& mine, TimePoint deadline);

  // From now on errors name each rank with its host and process. Collective, as Gather.
  Status LearnNames(const std::string& host, TimePoint deadline);

  // Goodbyes are the control plane's last messages: the reason as text, empty at the job's end.
  // Both planes look for them, each on its thread: a transfer with a rank that has left never ends.
  static constexpr int kGoodbyeTag = 2;
  // Takes a goodbye that MPI has matched.
  Status TakeGoodbye(MPI_Message matched, const MPI_Status& envelope) MYDIST_EXCLUDES(mutex_);
  // What a rank that fails tells of its transfers before its goodbye, taken in the same way.
  static constexpr int kCountsTag = 3;
  Status TakeCounts(MPI_Message matched, const MPI_Status& envelope) MYDIST_EXCLUDES(mutex_);
  // Nothing: they are not there, or the peer has told none.
  Result<std::optional<TransferCounts::Told>> CountsOf(int peer) MYDIST_EXCLUDES(mutex_);
  // Used by the thread that drives the engine.
  TransferCounts& counts() { return counts_; }
  bool HasDeparted(int peer) const MYDIST_EXCLUDES(mutex_);
  // Whether its goodbye has been taken, or is there to be taken.
  Result<bool> HasSaidGoodbye(int peer) const MYDIST_EXCLUDES(mutex_);
  int departed_count() const MYDIST_EXCLUDES(mutex_);
  // kPeerLost: `peer`, which has said goodbye, is needed. Takes the goodbye for its reason, before
  // messages that may be there from it: nothing but the end follows.
  Status HasLeft(int peer) MYDIST_EXCLUDES(mutex_);

  bool HaveAllLeftInOrder() const MYDIST_EXCLUDES(mutex_);

  // All ranks have said goodbye, so the communicators may be freed. Not `in_order`: but for that of
  // tensors. A piece that no rank takes may be on its way, and another communicator with the number
  // of this one would take it.
  void MarkClosed(bool in_order) {
    closed_ = true;
    is_in_order_ = in_order;
  }

 private:
  explicit MpiWorld(MpiSession* session) : session_(session) {}
  Status Duplicate(TimePoint deadline);
  Status TooLate() const;

  MpiSession* const session_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<std::string> names_;  // By rank: "rank 3 (host a, pid 71)"; empty: not known.
  MPI_Comm base_ = MPI_COMM_WORLD;
  MPI_Comm control_ = MPI_COMM_NULL;
  MPI_Comm tensors_ = MPI_COMM_NULL;
  mutable Mutex mutex_;
  // By rank; nothing for one that has not departed.
  std::vector<std::optional<std::string>> farewells_ MYDIST_GUARDED_BY(mutex_);
  std::vector<std::optional<TransferCounts::Told>> told_ MYDIST_GUARDED_BY(mutex_);  // By rank.
  TransferCounts counts_;
  bool closed_ = false;
  bool is_in_order_ = false;
};

}  // namespace mydist
