#include "transport/mpi/mpi_world.h"

#include <algorithm>
#include <climits>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/signal_block.h"
#include "transport/mpi/poll_backoff.h"
#include "world/departure.h"

namespace mydist {

namespace {

// A communicator of some ranks on its way into being. MPI offers no call that could give up when a
// rank never comes, hence a thread, which is left behind then; it shares the ownership.
struct Founding {
  Mutex mutex;
  CondVar changed;
  bool done MYDIST_GUARDED_BY(mutex) = false;
  Status status MYDIST_GUARDED_BY(mutex);
  MPI_Comm communicator MYDIST_GUARDED_BY(mutex) = MPI_COMM_NULL;
};

Status CreateFrom(const std::vector<int>& members, MPI_Comm* communicator) {
  // Told apart from what the program itself may be creating by the tag.
  constexpr int kTag = 0x6d64;
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Comm_group(MPI_COMM_WORLD, &world));
  MYDIST_RETURN_IF_MPI_ERROR(
      MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &group));
  Status created = MpiStatus(MPI_Comm_create_group(MPI_COMM_WORLD, group, kTag, communicator),
                             "MPI_Comm_create_group");
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return created;
}

// Nothing when `deadline` passes first.
Result<std::optional<MPI_Comm>> Found(const std::vector<int>& members, TimePoint deadline) {
  const auto founding = std::make_shared<Founding>();
  const SignalBlock no_signals;
  std::thread([founding, members] {
    MPI_Comm communicator = MPI_COMM_NULL;
    Status status = CreateFrom(members, &communicator);
    MutexLock lock(founding->mutex);
    founding->status = std::move(status);
    founding->communicator = communicator;
    founding->done = true;
    founding->changed.NotifyAll();
  }).detach();
  MutexLock lock(founding->mutex);
  while (!founding->done) {
    if (!founding->changed.WaitUntil(founding->mutex, deadline)) break;
  }
  if (!founding->done) return std::optional<MPI_Comm>();
  MYDIST_RETURN_IF_ERROR(founding->status);
  return std::optional<MPI_Comm>(founding->communicator);
}

// False when `deadline` passes first. MPI, which cannot cancel it, may then still use its memory.
Result<bool> CompleteBy(TimePoint deadline, MPI_Request request) {
  PollBackoff backoff(std::chrono::microseconds(200), std::chrono::milliseconds(1));
  backoff.Reset(Now());
  for (int done = 0;;) {
    MYDIST_RETURN_IF_MPI_ERROR(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done != 0) return true;
    const TimePoint now = Now();
    if (now >= deadline) return false;
    std::this_thread::sleep_for(backoff.Next(now));
  }
}

// What MPI reads and writes while the ranks gather their blobs.
struct Gathering {
  Bytes mine;
  int64_t own_bytes = 0;
  std::vector<int64_t> bytes_by_rank;
  std::vector<int> counts;
  std::vector<int> offsets;
  Bytes all;

  // From the sizes.
  Status LayOut() {
    int64_t total_bytes = 0;
    for (const int64_t bytes : bytes_by_rank) {
      if (total_bytes + bytes > INT_MAX) {
        return Status::Internal("the ranks exchange more than " + std::to_string(INT_MAX) +
                                " bytes while they connect, which is not supported");
      }
      counts.push_back(static_cast<int>(bytes));
      offsets.push_back(static_cast<int>(total_bytes));
      total_bytes += bytes;
    }
    all.resize(static_cast<size_t>(total_bytes));
    return Status::Ok();
  }
  std::vector<Bytes> Blobs() const {
    std::vector<Bytes> blobs;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      const auto begin = all.begin() + offsets[rank];
      blobs.emplace_back(begin, begin + counts[rank]);
    }
    return blobs;
  }
};

}  // namespace

Result<std::shared_ptr<MpiWorld>> MpiWorld::Connect(MpiSession* session,
                                                    const std::vector<int>& members,
                                                    TimePoint deadline) {
  std::shared_ptr<MpiWorld> world(new MpiWorld(session));
  session->NoteOpened();
  world->size_ = members.empty() ? session->world_size() : static_cast<int>(members.size());
  {
    MutexLock lock(world->mutex_);
    world->farewells_.resize(static_cast<size_t>(world->size_));
  }
  if (!members.empty()) {
    MYDIST_ASSIGN_OR_RETURN(const std::optional<MPI_Comm> base, Found(members, deadline));
    if (!base) return world->TooLate();
    world->base_ = *base;
  }
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Comm_rank(world->base_, &world->rank_));
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
    MYDIST_RETURN_IF_MPI_ERROR(MPI_Comm_idup(base_, target.get(), &request));
    MYDIST_ASSIGN_OR_RETURN(const bool is_complete, CompleteBy(deadline, request));
    if (!is_complete) {
      static_cast<void>(target.release());
      return TooLate();
    }
    *communicator = *target;
  }
  return Status::Ok();
}

Status MpiWorld::TooLate() const {
  return Status::Timeout(
      "not all " + std::to_string(size()) +
      " ranks came through mydist.init() in time. A rank may have failed earlier, skipped it or be "
      "stopped; see its output. MYDIST_TIMEOUT_SECONDS sets how long to wait.");
}

MpiWorld::~MpiWorld() {
  // Freeing is collective: only after goodbyes is it certain that all ranks come here. Otherwise
  // the communicators are left to the process's end, and MPI_Finalize is skipped.
  if (!closed_) return;
  MPI_Comm_free(&control_);
  MPI_Comm_free(&tensors_);
  if (base_ != MPI_COMM_WORLD) MPI_Comm_free(&base_);
  session_->NoteClosed();
}

Status MpiWorld::TakeGoodbye(MPI_Message matched, const MPI_Status& envelope) {
  int bytes = 0;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Get_count(&envelope, MPI_BYTE, &bytes));
  if (bytes < 0 || static_cast<size_t>(bytes) > kMaxFarewellBytes) {
    return Status::Internal(
        "rank " + std::to_string(envelope.MPI_SOURCE) + " sent a goodbye of " +
        std::to_string(bytes) + " bytes, at most " + std::to_string(kMaxFarewellBytes) +
        " are allowed. It runs another version of mydist, or its memory is damaged.");
  }
  std::string why(static_cast<size_t>(bytes), '\0');
  // So short that it is there once it has been matched.
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Mrecv(why.data(), bytes, MPI_BYTE, &matched, MPI_STATUS_IGNORE));
  MutexLock lock(mutex_);
  farewells_[static_cast<size_t>(envelope.MPI_SOURCE)] = std::move(why);
  return Status::Ok();
}

Result<bool> MpiWorld::HasSaidGoodbye(int peer) const {
  if (HasDeparted(peer)) return true;
  int found = 0;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Iprobe(peer, kGoodbyeTag, control_, &found, MPI_STATUS_IGNORE));
  return found != 0;
}

bool MpiWorld::HasDeparted(int peer) const {
  MutexLock lock(mutex_);
  return farewells_[static_cast<size_t>(peer)].has_value();
}

int MpiWorld::departed_count() const {
  MutexLock lock(mutex_);
  return static_cast<int>(std::count_if(
      farewells_.begin(), farewells_.end(),
      [](const std::optional<std::string>& farewell) { return farewell.has_value(); }));
}

Status MpiWorld::HasLeft(int peer) {
  int found = 0;
  MPI_Message matched = MPI_MESSAGE_NULL;
  MPI_Status envelope;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Improbe(peer, kGoodbyeTag, control_, &found, &matched, &envelope));
  if (found != 0) MYDIST_RETURN_IF_ERROR(TakeGoodbye(matched, envelope));
  MutexLock lock(mutex_);
  return PeerHasLeft(peer, "rank " + std::to_string(peer),
                     farewells_[static_cast<size_t>(peer)].value_or(""));
}

Result<std::vector<Bytes>> MpiWorld::Gather(const Bytes& mine, TimePoint deadline) {
  auto gathering = std::make_unique<Gathering>(
      Gathering{.mine = mine, .own_bytes = static_cast<int64_t>(mine.size())});
  Gathering& all = *gathering;
  all.bytes_by_rank.resize(static_cast<size_t>(size()));
  const auto complete = [&](MPI_Request request) -> Status {
    MYDIST_ASSIGN_OR_RETURN(const bool is_complete, CompleteBy(deadline, request));
    if (is_complete) return Status::Ok();
    static_cast<void>(gathering.release());
    return TooLate();
  };
  MPI_Request request = MPI_REQUEST_NULL;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Iallgather(&all.own_bytes, 1, MPI_INT64_T,
                                            all.bytes_by_rank.data(), 1, MPI_INT64_T, control_,
                                            &request));
  MYDIST_RETURN_IF_ERROR(complete(request));
  MYDIST_RETURN_IF_ERROR(all.LayOut());
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Iallgatherv(all.mine.data(), static_cast<int>(all.own_bytes),
                                             MPI_BYTE, all.all.data(), all.counts.data(),
                                             all.offsets.data(), MPI_BYTE, control_, &request));
  MYDIST_RETURN_IF_ERROR(complete(request));
  return all.Blobs();
}

}  // namespace mydist
