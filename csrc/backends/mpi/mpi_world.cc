#include "backends/mpi/mpi_world.h"

#include <algorithm>
#include <climits>
#include <string>
#include <thread>

#include "backends/mpi/poll_backoff.h"
#include "base/log.h"

namespace mydist {

Result<std::shared_ptr<MpiWorld>> MpiWorld::Connect(MpiSession* session, TimePoint deadline) {
  std::shared_ptr<MpiWorld> world(new MpiWorld(session));
  session->NoteOpened();
  MYDIST_RETURN_IF_ERROR(world->Duplicate(deadline));
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Comm_set_errhandler(world->control_, MPI_ERRORS_RETURN));
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Comm_set_errhandler(world->tensors_, MPI_ERRORS_RETURN));
  return world;
}

Status MpiWorld::Duplicate(TimePoint deadline) {
  // One after the other, since some MPIs mix up two duplications under way at once; not the
  // blocking call, which could not give up when a rank never comes.
  for (MPI_Comm* communicator : {&control_, &tensors_}) {
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    // Kept apart from the member until complete: MPI writes it while we wait.
    auto target = std::make_unique<MPI_Comm>(made);
    MYDIST_RETURN_IF_MPI_ERROR(MPI_Comm_idup(MPI_COMM_WORLD, target.get(), &request));
    PollBackoff backoff(std::chrono::microseconds(200), std::chrono::milliseconds(1));
    backoff.Reset(Now());
    for (int done = 0;;) {
      MYDIST_RETURN_IF_MPI_ERROR(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done != 0) break;
      const TimePoint now = Now();
      if (now >= deadline) {
        // MPI may still write to it, and there is no way to cancel.
        static_cast<void>(target.release());
        return Status::Timeout(
            "not all " + std::to_string(size()) +
            " ranks called mydist.init() in time. A rank may have failed before or skipped it; its "
            "output says why. MYDIST_TIMEOUT_SECONDS sets how long to wait.");
      }
      std::this_thread::sleep_for(backoff.Next(now));
    }
    *communicator = *target;
  }
  return Status::Ok();
}

MpiWorld::~MpiWorld() {
  // Freeing is collective: only after goodbyes is it certain that all ranks come here. Otherwise
  // the communicators are left to the process's end, and MPI_Finalize is skipped.
  if (!closed_) return;
  MPI_Comm_free(&control_);
  MPI_Comm_free(&tensors_);
  session_->NoteClosed();
}

Result<bool> MpiWorld::HasSaidGoodbye(int peer) const {
  if (HasDeparted(peer)) return true;
  int found = 0;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Iprobe(peer, kGoodbyeTag, control_, &found, MPI_STATUS_IGNORE));
  return found != 0;
}

int MpiWorld::departed_count() const {
  return static_cast<int>(std::count(departed_.begin(), departed_.end(), true));
}

Result<std::vector<Bytes>> MpiWorld::Gather(const Bytes& mine) {
  const auto ranks = static_cast<size_t>(size());
  const auto own_bytes = static_cast<int64_t>(mine.size());
  std::vector<int64_t> bytes_by_rank(ranks);
  MYDIST_RETURN_IF_MPI_ERROR(
      MPI_Allgather(&own_bytes, 1, MPI_INT64_T, bytes_by_rank.data(), 1, MPI_INT64_T, control_));
  std::vector<int> counts(ranks);
  std::vector<int> offsets(ranks);
  int64_t total_bytes = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (total_bytes + bytes_by_rank[rank] > INT_MAX) {
      return Status::Internal("the ranks want to exchange more than " + std::to_string(INT_MAX) +
                              " bytes while connecting; blobs this large are not supported");
    }
    counts[rank] = static_cast<int>(bytes_by_rank[rank]);
    offsets[rank] = static_cast<int>(total_bytes);
    total_bytes += bytes_by_rank[rank];
  }
  Bytes all(static_cast<size_t>(total_bytes));
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Allgatherv(mine.data(), static_cast<int>(own_bytes), MPI_BYTE,
                                            all.data(), counts.data(), offsets.data(), MPI_BYTE,
                                            control_));
  std::vector<Bytes> blobs;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = all.begin() + offsets[rank];
    blobs.emplace_back(begin, begin + counts[rank]);
  }
  return blobs;
}

}  // namespace mydist
