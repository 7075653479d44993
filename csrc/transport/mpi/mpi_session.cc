#include "transport/mpi/mpi_session.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "base/signal_block.h"

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

}  // namespace mydist
