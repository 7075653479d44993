// The MPI backend plugin. MPI itself numbers the ranks; the launcher's figures are compared with
// it, because a process run with the wrong MPI library silently gets a world of size 1.
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/plugin_version.h"
#include "base/process.h"
#include "base/status.h"
#include "config/stopped_processes.h"
#include "transport/control_plane.h"
#include "transport/factory.h"
#include "transport/mpi/mpi_transport.h"
#include "transport/mpi/mpi_world.h"
#include "transport/mpi/poll_backoff.h"
#include "transport/transport.h"

namespace mydist {
namespace {

// MpiControlPlane: ControlPlane over MPI point-to-point messages. Sends are non-blocking with kept
// buffers. MPI has no receive that Wake could interrupt, so Await looks again and again, with
// pauses that grow to kLongestPause while nothing comes; a pause ends at once on Wake. It leaves
// the looking for messages to others while attended. What it finds Receive returns.
class MpiControlPlane final : public ControlPlane {
 public:
  explicit MpiControlPlane(std::shared_ptr<MpiWorld> world)
      : world_(std::move(world)), backoff_(kEager, kLongestPause) {}
  ~MpiControlPlane() override {
    MutexLock lock(mpi_mutex_);
    // After an end that was not orderly MPI may still read and write the memory of these, and has
    // no way to be told not to.
    if (!outgoing_.empty()) static_cast<void>(new std::list<Outgoing>(std::move(outgoing_)));
    static_cast<void>(arriving_.release());
  }
  MpiControlPlane(const MpiControlPlane&) = delete;
  MpiControlPlane& operator=(const MpiControlPlane&) = delete;

  Status Send(int peer, Bytes payload) override {
    MYDIST_CHECK(peer >= 0 && peer < world_->size() && peer != world_->rank());
    if (static_cast<int64_t>(payload.size()) > kMaxControlMessageBytes) {
      return Status::Internal("a control message of " + std::to_string(payload.size()) +
                              " bytes is longer than the limit of " +
                              std::to_string(kMaxControlMessageBytes) +
                              "; submit fewer tensors at once");
    }
    MutexLock lock(mpi_mutex_);
    if (world_->HasDeparted(peer)) return world_->HasLeft(peer);
    return Post(peer, kMessageTag, std::move(payload));
  }
  Status CheckPeer(int peer) override {
    MutexLock lock(mpi_mutex_);
    return world_->HasDeparted(peer) ? world_->HasLeft(peer) : Status::Ok();
  }
  Result<std::optional<IncomingMessage>> Receive() override {
    MutexLock lock(mpi_mutex_);
    if (found_.has_value()) return std::exchange(found_, std::nullopt);
    MYDIST_RETURN_IF_ERROR(std::exchange(failure_, Status::Ok()));
    return Poll();
  }
  void Await(TimePoint deadline) override {
    backoff_.Reset(Now());
    while (!HasNews() && Pause(deadline)) {
    }
    MutexLock lock(mutex_);
    woken_ = false;
  }
  void Wake() override {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyOne();
  }
  void Attend(bool attended) override {
    MutexLock lock(mutex_);
    attended_ = attended;
  }
  void SetFarewell(const std::string& why) override {
    farewell_ = why.substr(0, kMaxFarewellBytes);
  }
  Status Close(TimePoint deadline) override {
    MutexLock lock(mpi_mutex_);
    const Bytes words(farewell_.begin(), farewell_.end());
    for (int peer = 0; peer < world_->size(); ++peer) {
      if (peer == world_->rank()) continue;
      if (!words.empty()) {
        MYDIST_RETURN_IF_ERROR(
            Post(peer, MpiWorld::kCountsTag, world_->counts().ToldTo(peer).Encode()));
      }
      MYDIST_RETURN_IF_ERROR(Post(peer, MpiWorld::kGoodbyeTag, words));
    }
    backoff_.Reset(Now());
    while (PresentPeers() > 0 || !outgoing_.empty()) {
      // Messages that come between now and a peer's goodbye have no reader any more.
      MYDIST_ASSIGN_OR_RETURN(const std::optional<IncomingMessage> unread, Poll());
      if (unread.has_value()) continue;
      const TimePoint now = Now();
      if (now >= deadline) {
        return Status::Timeout(std::to_string(PresentPeers()) +
                               " rank(s) did not close their connections in time; they may be busy "
                               "or stopped. See their output.");
      }
      std::this_thread::sleep_until(std::min(deadline, now + backoff_.Next(now)));
    }
    world_->MarkClosed(words.empty() && world_->HaveAllLeftInOrder());
    return Status::Ok();
  }

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

  Status Post(int peer, int tag, Bytes payload) MYDIST_REQUIRES(mpi_mutex_) {
    MYDIST_RETURN_IF_ERROR(ReapOutgoing());
    Outgoing& outgoing = outgoing_.emplace_back();
    outgoing.payload = std::move(payload);
    return MpiStatus(MPI_Isend(outgoing.payload.data(), static_cast<int>(outgoing.payload.size()),
                               MPI_BYTE, peer, tag, world_->control(), &outgoing.request),
                     "MPI_Isend to rank " + std::to_string(peer));
  }
  Status ReapOutgoing() MYDIST_REQUIRES(mpi_mutex_) {
    for (auto it = outgoing_.begin(); it != outgoing_.end();) {
      int done = 0;
      MYDIST_RETURN_IF_MPI_ERROR(MPI_Test(&it->request, &done, MPI_STATUS_IGNORE));
      it = done != 0 ? outgoing_.erase(it) : std::next(it);
    }
    return Status::Ok();
  }
  // Lets MPI work, and returns a message that is complete. Never blocks.
  Result<std::optional<IncomingMessage>> Poll() MYDIST_REQUIRES(mpi_mutex_) {
    MYDIST_RETURN_IF_ERROR(ReapOutgoing());
    for (;;) {
      if (arriving_ == nullptr) MYDIST_RETURN_IF_ERROR(MatchNext());
      if (arriving_ == nullptr) return std::optional<IncomingMessage>();
      int done = 0;
      MYDIST_RETURN_IF_MPI_ERROR(MPI_Test(&arriving_->request, &done, MPI_STATUS_IGNORE));
      if (done == 0) return std::optional<IncomingMessage>();
      const std::unique_ptr<Arriving> arrived = std::move(arriving_);
      return std::optional(std::move(arrived->message));
    }
  }
  Status MatchNext() MYDIST_REQUIRES(mpi_mutex_) {
    int found = 0;
    MPI_Message matched = MPI_MESSAGE_NULL;
    MPI_Status envelope;
    MYDIST_RETURN_IF_MPI_ERROR(
        MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, world_->control(), &found, &matched, &envelope));
    if (found == 0) return Status::Ok();
    const bool is_goodbye = envelope.MPI_TAG == MpiWorld::kGoodbyeTag;
    if (is_goodbye || envelope.MPI_TAG == MpiWorld::kCountsTag) {
      MYDIST_RETURN_IF_ERROR(is_goodbye ? world_->TakeGoodbye(matched, envelope)
                                        : world_->TakeCounts(matched, envelope));
      return MatchNext();
    }
    int bytes = 0;
    MYDIST_RETURN_IF_MPI_ERROR(MPI_Get_count(&envelope, MPI_BYTE, &bytes));
    if (bytes < 0 || bytes > kMaxControlMessageBytes) {
      return Status::Internal(
          "rank " + std::to_string(envelope.MPI_SOURCE) + " sent a control message of " +
          std::to_string(bytes) + " bytes, at most " + std::to_string(kMaxControlMessageBytes) +
          " are allowed. It runs another version of mydist, or its memory is damaged.");
    }
    arriving_ = std::make_unique<Arriving>();
    arriving_->message.source = envelope.MPI_SOURCE;
    arriving_->message.payload.resize(static_cast<size_t>(bytes));
    MYDIST_RETURN_IF_MPI_ERROR(MPI_Imrecv(arriving_->message.payload.data(), bytes, MPI_BYTE,
                                          &matched, &arriving_->request));
    return Status::Ok();
  }
  bool IsAttended() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return attended_;
  }
  // Whether Receive has something to return. Looks for it, unless attended; then it only lets MPI
  // go on with what is being sent.
  bool HasNews() {
    const bool is_attended = IsAttended();
    MutexLock lock(mpi_mutex_);
    if (is_attended) {
      // The caller may be in a collective without MPI, which a peer enters only after it has
      // received pending messages, and long messages move only during calls of MPI.
      const Status status = ReapOutgoing();
      if (!status.ok()) failure_ = status;
      return false;
    }
    if (found_.has_value() || !failure_.ok()) return true;
    Result<std::optional<IncomingMessage>> looked = Poll();
    if (looked.ok()) {
      found_ = *std::move(looked);
    } else {
      failure_ = looked.status();
    }
    return found_.has_value() || !failure_.ok();
  }
  // Pauses after a look that found nothing. False when Await is to return.
  bool Pause(TimePoint deadline) MYDIST_EXCLUDES(mutex_) {
    const TimePoint now = Now();
    const Duration pause = backoff_.Next(now);
    MutexLock lock(mutex_);
    if (woken_ || now >= deadline) return false;
    if (attended_) {
      changed_.WaitUntil(mutex_, std::min(deadline, now + kLongestPause));
    } else if (pause == Duration::zero()) {
      sched_yield();
    } else {
      changed_.WaitUntil(mutex_, std::min(deadline, now + pause));
    }
    return true;
  }
  int PresentPeers() const { return world_->size() - 1 - world_->departed_count(); }

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

// "Open MPI v4.1.4" out of the library's paragraph about itself.
std::string LibraryVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "unknown MPI";
  std::string version(text, static_cast<size_t>(std::max(length, 0)));
  version.resize(std::min(version.find_first_of(",\n\r"), version.size()));
  version.resize(std::min(version.find('\0'), version.size()));
  std::replace(version.begin(), version.end(), '\t', ' ');
  constexpr size_t kLongest = 80;
  if (version.size() > kLongest) version.resize(kLongest);
  return version;
}

std::string Identity(int rank, int size) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size);
}

// For a job of some of the ranks.
Status CheckMember(const BackendOptions& options, const MpiSession& session) {
  const auto rank = static_cast<size_t>(options.rank);
  const int highest = *std::max_element(options.members.begin(), options.members.end());
  if (highest < session.world_size() && rank < options.members.size() &&
      options.members[rank] == session.world_rank()) {
    return Status::Ok();
  }
  return Status::InvalidArgument("the launcher says this is rank " + std::to_string(options.rank) +
                                 " of a job of " + std::to_string(options.members.size()) +
                                 " of the launched ranks, MPI says it was launched as " +
                                 Identity(session.world_rank(), session.world_size()) +
                                 ". Start the job with one mpirun or mydistrun --mpi only.");
}

// Size 0 and rank -1 in the options mean: as MPI says.
Status CheckIdentity(const BackendOptions& options, const MpiSession& session) {
  if (!options.members.empty()) return CheckMember(options, session);
  const bool size_differs = options.size > 0 && options.size != session.world_size();
  const bool rank_differs =
      options.rank >= 0 && options.size > 0 && options.rank != session.world_rank();
  if (!size_differs && !rank_differs) return Status::Ok();
  const std::string cause =
      session.world_size() == 1
          ? "The launcher and mydist probably use different MPI libraries (mydist uses " +
                LibraryVersion() +
                "): start the job with that library's mpirun, or build mydist against the "
                "launcher's."
          : "The job was probably started by two launchers at once, or RANK and WORLD_SIZE are set "
            "in the environment: start it with one mpirun or mydistrun --mpi only.";
  return Status::InvalidArgument(
      "the launcher says this is " + Identity(options.rank, options.size) + ", MPI says it is " +
      Identity(session.world_rank(), session.world_size()) + ". " + cause);
}

// Of the launched ranks of this host, those whose processes are stopped, with their processes: MPI
// does not tell which ranks MPI_Init waits for. PMIx, by which ranks start, gives the variables.
std::map<int, int64_t> StoppedRanks() {
  std::map<int, int64_t> pids;
  for (const StoppedProcess& process : FindStopped("PMIX_NAMESPACE", "PMIX_RANK")) {
    int rank = -1;
    const char* const end = process.value.data() + process.value.size();
    const bool is_rank = std::from_chars(process.value.data(), end, rank).ptr == end && rank >= 0;
    if (is_rank) pids.emplace(rank, process.pid);  // A child of the rank comes behind it.
  }
  return pids;
}

// A time-out of the start with the ranks of this host that are stopped. `members`: as in
// BackendOptions.
Status WithStoppedRanks(const Status& error, const Config& config,
                        const std::vector<int>& members) {
  if (error.code() != StatusCode::kTimeout) return error;
  Status named = error;
  Failure failure;
  for (const auto& [launched, pid] : StoppedRanks()) {
    const auto member = std::find(members.begin(), members.end(), launched);
    const bool is_of_job = members.empty() || member != members.end();
    const int rank = members.empty() ? launched : static_cast<int>(member - members.begin());
    named = named.WithSentence(
        (is_of_job ? "rank " + std::to_string(rank) : "launched rank " + std::to_string(launched)) +
        " (host " + config.HostId() + ", pid " + std::to_string(pid) +
        ") gives no answer: " + ProcessStateText(pid));
    if (!is_of_job) continue;
    failure.ranks.push_back(rank);
    failure.hosts.push_back(config.HostId());
    failure.pids.push_back(pid);
  }
  if (failure.ranks.empty()) return named;
  failure.finding = kSilentFinding;
  if (failure.ranks.size() == 1) {
    failure.host = failure.hosts.front();
    failure.pid = failure.pids.front();
  }
  return named.About(failure);
}

class MpiPlugin final : public BackendPlugin {
 public:
  std::string name() const override { return "mpi"; }
  std::string Description() const override { return LibraryVersion(); }

  Status Prepare(const Config& config) override {
    const Status started = MpiSession::Get(Now() + config.connect_timeout).status();
    return WithStoppedRanks(started, config, {});
  }

  Result<Connection> Connect(const BackendOptions& options) override {
    const TimePoint deadline = Now() + options.config->connect_timeout;
    const Result<MpiSession*> started = MpiSession::Get(deadline);
    if (!started.ok()) {
      return WithStoppedRanks(started.status(), *options.config, options.members)
          .About({.operation = "init", .phase = "start"});
    }
    MpiSession* const session = *started;
    MYDIST_RETURN_IF_ERROR(CheckIdentity(options, *session));
    Connection connection;
    const bool is_whole = options.members.empty();
    connection.rank = is_whole ? session->world_rank() : options.rank;
    connection.size = is_whole ? session->world_size() : static_cast<int>(options.members.size());
    if (connection.size == 1) {
      connection.exchange = [](const Bytes& mine) -> Result<std::vector<Bytes>> {
        return std::vector<Bytes>{mine};
      };
      return connection;
    }
    MYDIST_ASSIGN_OR_RETURN(const std::shared_ptr<MpiWorld> world,
                            MpiWorld::Connect(session, options.members, options.meeting, deadline));
    MYDIST_RETURN_IF_ERROR(world->LearnNames(options.config->HostId(), deadline));
    MYDIST_LOG(kInfo) << "connected over " << LibraryVersion() << " as "
                      << Identity(connection.rank, connection.size);
    connection.control = std::make_unique<MpiControlPlane>(world);
    connection.transport = MakeMpiTransport(world);
    connection.exchange = [world, patience = options.config->connect_timeout](const Bytes& mine) {
      return world->Gather(mine, Now() + patience);
    };
    return connection;
  }
};

}  // namespace

}  // namespace mydist

MYDIST_PLUGIN_VERSION

extern "C" {

MYDIST_EXPORT mydist::BackendPlugin* mydist_backend_plugin_v1() {
  static auto* plugin = new mydist::MpiPlugin;
  return plugin;
}

// For tests of chunking: the longest piece of a transfer; to be set alike on all ranks.
MYDIST_EXPORT void mydist_mpi_set_chunk_bytes(int64_t chunk_bytes) {
  mydist::SetMpiChunkBytes(chunk_bytes);
}

}  // extern "C"
