// MpiSession: the process's one MPI, initialised on first use or taken over from the user's program
// (mpi4py), and kept until the process ends, because MPI cannot be initialised twice.
// Never destroyed. Thread-safe.
#pragma once

#include <mpi.h>

#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace mydist {

// Turns an MPI error code into a Status that names the call and what MPI says about it.
Status MpiStatus(int code, const std::string& call);

#define MYDIST_RETURN_IF_MPI_ERROR(call) MYDIST_RETURN_IF_ERROR(::mydist::MpiStatus((call), #call))

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

}  // namespace mydist
