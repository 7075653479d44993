#include "transport/mpi/mpi_world.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "base/signal_block.h"
#include "transport/mpi/poll_backoff.h"

namespace mydist {
namespace {

const char* ThreadLevelName(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED:
      return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED:
      return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_MULTIPLE:
      return "MPI_THREAD_MULTIPLE";
    default:
      return "an unknown level";
  }
}

Status CheckThreadLevel(int provided, bool ours) {
  if (provided >= MPI_THREAD_MULTIPLE) return Status::Ok();
  const std::string advice =
      ours ? "Use an MPI built with thread support, or run over Gloo (mydistrun --gloo)."
           : "The program initialised MPI itself: let it request MPI_THREAD_MULTIPLE (mpi4py: "
             "mpi4py.rc.thread_level = 'multiple' before importing MPI), or call mydist.init() "
             "first, or run over Gloo (mydistrun --gloo).";
  return Status::Internal(std::string("this MPI library provides ") + ThreadLevelName(provided) +
                          ", mydist needs MPI_THREAD_MULTIPLE. " + advice);
}

MpiSession* the_session = nullptr;

// MPI_Init_thread on its way, on a thread of its own: it waits for all ranks, and could not give
// up. Never destroyed, as that thread may stay in it for ever.
struct Starting {
  Mutex mutex;
  CondVar changed;
  bool done MYDIST_GUARDED_BY(mutex) = false;
  int code MYDIST_GUARDED_BY(mutex) = MPI_SUCCESS;
  int provided MYDIST_GUARDED_BY(mutex) = MPI_THREAD_SINGLE;
};

// Null until this process has begun to start MPI.
std::atomic<Starting*> the_start{nullptr};

// May throw std::system_error.
Starting& TheStart() {
  static Starting* const starting = [] {
    auto* fresh = new Starting;
    const SignalBlock no_signals;
    std::thread([fresh] {
      int provided = MPI_THREAD_SINGLE;
      const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
      MutexLock lock(fresh->mutex);
      fresh->code = code;
      fresh->provided = provided;
      fresh->done = true;
      fresh->changed.NotifyAll();
    }).detach();
    the_start.store(fresh);
    return fresh;
  }();
  return *starting;
}

Status AwaitStart(TimePoint deadline, int* provided) try {
  Starting& starting = TheStart();
  MutexLock lock(starting.mutex);
  while (!starting.done) {
    if (starting.changed.WaitUntil(starting.mutex, deadline)) continue;
    if (starting.done) break;
    return Status::Timeout(
        "MPI_Init did not return in time. A rank may have failed earlier or skipped mydist.init(); "
        "see its output. MYDIST_TIMEOUT_SECONDS sets how long to wait.");
  }
  *provided = starting.provided;
  return MpiStatus(starting.code, "MPI_Init_thread");
} catch (const std::system_error& error) {
  return Status::Internal(std::string("cannot start a thread that starts MPI: ") + error.what());
}

// How often a rank tells that it waits in MPI_Finalize, and which ranks do so: one of the two waits
// also where the other is the one that all wait for.
constexpr std::chrono::seconds kFinalizeLine{10};
constexpr int kFirstQuietRank = 2;

// A thread that tells of MPI_Finalize, which waits for all ranks without an end, and for mpirun.
class FinalizeTeller {
 public:
  // May throw std::system_error.
  FinalizeTeller() {
    const SignalBlock no_signals;
    thread_ = std::thread([this] { Run(); });
  }
  ~FinalizeTeller() {
    {
      MutexLock lock(mutex_);
      is_over_ = true;
    }
    changed_.NotifyAll();
    thread_.join();
  }
  FinalizeTeller(const FinalizeTeller&) = delete;
  FinalizeTeller& operator=(const FinalizeTeller&) = delete;

 private:
  void Run() {
    const TimePoint begin = Now();
    TimePoint next = begin + kFinalizeLine;
    MutexLock lock(mutex_);
    while (!is_over_) {
      if (changed_.WaitUntil(mutex_, next) || is_over_) continue;
      MYDIST_LOG(kWarning) << "this rank is done and has waited "
                           << static_cast<int>(ToSeconds(next - begin))
                           << " s in MPI_Finalize: other ranks run on, or mpirun gives no answer";
      next += kFinalizeLine;
    }
  }

  Mutex mutex_;
  CondVar changed_;
  bool is_over_ MYDIST_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

void Finalize(int rank) try {
  std::optional<FinalizeTeller> teller;
  if (rank < kFirstQuietRank) teller.emplace();
  MPI_Finalize();
} catch (const std::system_error&) {  // Without a thread nothing tells of it.
  MPI_Finalize();
}

Mutex& SessionMutex() {
  static auto* mutex = new Mutex;
  return *mutex;
}

// A communicator of some ranks on its way into being. MPI offers no call that could give up when a
// rank never comes, hence a thread, which is left behind then; it shares the ownership.
struct Founding {
  Mutex mutex;
  CondVar changed;
  bool done MYDIST_GUARDED_BY(mutex) = false;
  Status status MYDIST_GUARDED_BY(mutex);
  MPI_Comm communicator MYDIST_GUARDED_BY(mutex) = MPI_COMM_NULL;
};

Status CreateFrom(const std::vector<int>& members, int meeting, MPI_Comm* communicator) {
  // Told apart from what the program itself may be creating. MPI allows tags up to 32767.
  constexpr int kTag = 0x6d64;
  const int tag = (kTag + meeting) & 0x7fff;
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Comm_group(MPI_COMM_WORLD, &world));
  MYDIST_RETURN_IF_MPI_ERROR(
      MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &group));
  Status created = MpiStatus(MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, communicator),
                             "MPI_Comm_create_group");
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return created;
}

// Nothing when `deadline` passes first.
Result<std::optional<MPI_Comm>> Found(const std::vector<int>& members, int meeting,
                                      TimePoint deadline) {
  const auto founding = std::make_shared<Founding>();
  const SignalBlock no_signals;
  std::thread([founding, members, meeting] {
    MPI_Comm communicator = MPI_COMM_NULL;
    Status status = CreateFrom(members, meeting, &communicator);
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

Status MpiStatus(int code, const std::string& call) {
  if (code == MPI_SUCCESS) return Status::Ok();
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  const std::string name = call.substr(0, call.find('('));
  return Status::Internal(name + " failed: " + text + ". See the output of the ranks.");
}

Result<MpiSession*> MpiSession::Get(TimePoint deadline) {
  MutexLock lock(SessionMutex());
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    return Status::Internal(
        "MPI has been finalized and cannot be started again. Call mydist.init() before the "
        "program (or mpi4py at exit) calls MPI_Finalize.");
  }
  if (the_session == nullptr) {
    auto* session = new MpiSession;
    if (Status started = Start(session, deadline); !started.ok()) {
      delete session;
      return started;
    }
    the_session = session;
  }
  return the_session;
}

Status MpiSession::Start(MpiSession* session, TimePoint deadline) {
  int initialized = 0;
  int provided = MPI_THREAD_SINGLE;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Initialized(&initialized));
  // A start that an earlier call gave up may have ended meanwhile.
  if (initialized != 0 && the_start.load() == nullptr) {
    MYDIST_RETURN_IF_MPI_ERROR(MPI_Query_thread(&provided));
  } else {
    MYDIST_RETURN_IF_ERROR(AwaitStart(deadline, &provided));
    static int owner_pid = 0;
    owner_pid = getpid();
    // Registered even when the thread level turns out too low: what we started, we end.
    std::atexit([] {
      if (getpid() == owner_pid) FinalizeAtExit();
    });
  }
  MYDIST_RETURN_IF_ERROR(CheckThreadLevel(provided, the_start.load() != nullptr));
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Comm_rank(MPI_COMM_WORLD, &session->world_rank_));
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Comm_size(MPI_COMM_WORLD, &session->world_size_));
  return Status::Ok();
}

void MpiSession::NoteOpened() {
  MutexLock lock(mutex_);
  ++open_count_;
}

void MpiSession::NoteClosed() {
  MutexLock lock(mutex_);
  --open_count_;
}

void MpiSession::FinalizeAtExit() {
  MpiSession* session = nullptr;
  {
    MutexLock lock(SessionMutex());
    session = the_session;
  }
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  if (session != nullptr) {
    MutexLock lock(session->mutex_);
    if (session->open_count_ > 0) {
      MYDIST_LOG(kWarning) << "this rank exits without MPI_Finalize, because its connections to "
                              "other ranks were not closed in order; mpirun will end the job";
      return;
    }
  }
  Finalize(session != nullptr ? session->world_rank() : 0);
}

Result<std::shared_ptr<MpiWorld>> MpiWorld::Connect(MpiSession* session,
                                                    const std::vector<int>& members, int meeting,
                                                    TimePoint deadline) {
  std::shared_ptr<MpiWorld> world(new MpiWorld(session));
  session->NoteOpened();
  world->size_ = members.empty() ? session->world_size() : static_cast<int>(members.size());
  {
    MutexLock lock(world->mutex_);
    world->farewells_.resize(static_cast<size_t>(world->size_));
    world->told_.resize(static_cast<size_t>(world->size_));
  }
  world->counts_.Resize(world->size_);
  if (!members.empty()) {
    MYDIST_ASSIGN_OR_RETURN(const std::optional<MPI_Comm> base, Found(members, meeting, deadline));
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
  if (is_in_order_) MPI_Comm_free(&tensors_);
  if (base_ != MPI_COMM_WORLD) MPI_Comm_free(&base_);
  session_->NoteClosed();
}

Status MpiWorld::LearnNames(const std::string& host, TimePoint deadline) {
  const std::string text = "rank " + std::to_string(rank()) + " (host " + host + ", pid " +
                           std::to_string(getpid()) + ")";
  MYDIST_ASSIGN_OR_RETURN(const std::vector<Bytes> texts,
                          Gather(Bytes(text.begin(), text.end()), deadline));
  for (const Bytes& theirs : texts) names_.emplace_back(theirs.begin(), theirs.end());
  return Status::Ok();
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
