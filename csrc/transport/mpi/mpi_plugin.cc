// The MPI backend plugin. MPI itself numbers the ranks; the launcher's figures are compared with
// it, because a process run with the wrong MPI library silently gets a world of size 1.
#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "base/plugin_version.h"
#include "base/status.h"
#include "transport/control_plane.h"
#include "transport/factory.h"
#include "transport/mpi/mpi_world.h"
#include "transport/mpi/poll_backoff.h"
#include "transport/transport.h"
#include "world/late_writes.h"

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
      if (peer != world_->rank()) MYDIST_RETURN_IF_ERROR(Post(peer, MpiWorld::kGoodbyeTag, words));
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
    world_->MarkClosed();
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
    if (envelope.MPI_TAG == MpiWorld::kGoodbyeTag) {
      MYDIST_RETURN_IF_ERROR(world_->TakeGoodbye(matched, envelope));
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

// MPI moves data only while somebody calls it, so the pauses begin late: after this long without
// any piece complete, the peers are busy with something else.
constexpr Duration kEager = std::chrono::milliseconds(2);
constexpr Duration kLongestPause = std::chrono::microseconds(500);
// How long what a rank sent before its goodbye may take to arrive.
constexpr Duration kGoodbyeGrace = std::chrono::milliseconds(500);

// MpiTransport: Transport over non-blocking MPI messages on a communicator of its own.
// Long transfers go in pieces of chunk_bytes, since MPI counts are ints, short ones in pieces that
// MPI sends at once. One tag for all: MPI keeps the order per pair of ranks.
class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(std::shared_ptr<MpiWorld> world) : world_(std::move(world)) {}

  int rank() const override { return world_->rank(); }
  int size() const override { return world_->size(); }
  void SetWatchdog(Watchdog* watchdog) override { watchdog_ = watchdog; }
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    Status status = PostAll(sends, receives);
    if (status.ok()) status = AwaitAll();
    if (!status.ok()) Abandon();
    requests_.clear();
    peers_.clear();
    return status;
  }

  // Longest piece a transfer is sent in; must be the same on all ranks. Process-wide, for tests.
  static std::atomic<int64_t> chunk_bytes;

 private:
  static constexpr int kTensorTag = 1;

  Status PostAll(std::span<const SendTransfer> sends, std::span<const ReceiveTransfer> receives) {
    const int64_t limit = chunk_bytes.load();
    receive_count_ = std::numeric_limits<size_t>::max();  // All, until there are sends.
    int code = MPI_SUCCESS;
    const auto post = [&](int peer, int64_t bytes, auto start) {
      ForEachChunk(bytes, PieceBytes(bytes, limit), [&](int64_t offset, int64_t length) {
        if (code != MPI_SUCCESS) return;
        requests_.push_back(MPI_REQUEST_NULL);
        peers_.push_back(peer);
        code = start(offset, static_cast<int>(length), &requests_.back());
      });
      return MpiStatus(code, "starting a transfer with rank " + std::to_string(peer));
    };
    for (const ReceiveTransfer& receive : receives) {
      auto* data = static_cast<uint8_t*>(receive.data);
      const auto start = [&](int64_t offset, int count, MPI_Request* request) {
        return MPI_Irecv(data + offset, count, MPI_BYTE, receive.peer, kTensorTag,
                         world_->tensors(), request);
      };
      MYDIST_RETURN_IF_ERROR(post(receive.peer, receive.bytes, start));
    }
    receive_count_ = requests_.size();
    for (const SendTransfer& send : sends) {
      const auto* data = static_cast<const uint8_t*>(send.data);
      const auto start = [&](int64_t offset, int count, MPI_Request* request) {
        return MPI_Isend(data + offset, count, MPI_BYTE, send.peer, kTensorTag, world_->tensors(),
                         request);
      };
      MYDIST_RETURN_IF_ERROR(post(send.peer, send.bytes, start));
    }
    return Status::Ok();
  }
  Status AwaitAll() {
    completed_.resize(requests_.size());
    PollBackoff backoff(kEager, kLongestPause);
    backoff.Reset(Now());
    GoodbyeGrace grace(kGoodbyeGrace);
    WatchedWait wait(watchdog_);
    for (size_t left = requests_.size(); left > 0;) {
      int count = 0;
      const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                    completed_.data(), MPI_STATUSES_IGNORE);
      if (code != MPI_SUCCESS) {
        const int peer = count > 0 ? peers_[static_cast<size_t>(completed_[0])] : -1;
        return MpiStatus(code, peer < 0
                                   ? "moving tensors"
                                   : "moving a tensor to or from rank " + std::to_string(peer));
      }
      if (count == MPI_UNDEFINED) break;
      left -= static_cast<size_t>(count);
      const TimePoint now = Now();
      if (count > 0) {
        backoff.Reset(now);
        wait.Restart(now);
      } else if (const Duration pause = backoff.Next(now); pause > Duration::zero()) {
        MYDIST_ASSIGN_OR_RETURN(const int departed, DepartedPeer());
        if (grace.IsOver(departed, now)) return world_->HasLeft(departed);
        if (wait.IsDue(now)) MYDIST_RETURN_IF_ERROR(wait.Look(AwaitedPeers(), now));
        std::this_thread::sleep_for(pause);
      } else {
        sched_yield();
      }
    }
    return Status::Ok();
  }
  // A rank of a transfer under way that has said goodbye: it will not do its part. -1: none.
  Result<int> DepartedPeer() const {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      MYDIST_ASSIGN_OR_RETURN(const bool departed, world_->HasSaidGoodbye(peers_[i]));
      if (departed) return peers_[i];
    }
    return -1;
  }
  // The ranks of transfers under way.
  std::span<const int> AwaitedPeers() {
    awaited_.clear();
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL) awaited_.push_back(peers_[i]);
    }
    return awaited_;
  }
  // Gives up on what is still under way after an error.
  void Abandon() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      // Best effort: MPI has no way to take back a message that has begun.
      (void)MPI_Cancel(&requests_[i]);
      int is_over = 0;
      const int tested = MPI_Test(&requests_[i], &is_over, MPI_STATUS_IGNORE);
      if (tested == MPI_SUCCESS && is_over != 0) continue;
      if (i < receive_count_) ExpectLateWrites();
      if (requests_[i] != MPI_REQUEST_NULL) (void)MPI_Request_free(&requests_[i]);
    }
  }

  const std::shared_ptr<MpiWorld> world_;
  Watchdog* watchdog_ = nullptr;
  // Parallel arrays, empty between calls; kept for their memory.
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
  size_t receive_count_ = 0;  // They come first.
  std::vector<int> completed_;
  std::vector<int> awaited_;
};

std::atomic<int64_t> MpiTransport::chunk_bytes{int64_t{1} << 30};

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
  if (options.members.back() < session.world_size() && rank < options.members.size() &&
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

class MpiPlugin final : public BackendPlugin {
 public:
  std::string name() const override { return "mpi"; }
  std::string Description() const override { return LibraryVersion(); }

  Result<Connection> Connect(const BackendOptions& options) override {
    const TimePoint deadline = Now() + options.config->connect_timeout;
    MYDIST_ASSIGN_OR_RETURN(MpiSession* const session, MpiSession::Get(deadline));
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
                            MpiWorld::Connect(session, options.members, deadline));
    MYDIST_RETURN_IF_ERROR(world->LearnNames(options.config->HostId(), deadline));
    MYDIST_LOG(kInfo) << "connected over " << LibraryVersion() << " as "
                      << Identity(connection.rank, connection.size);
    connection.control = std::make_unique<MpiControlPlane>(world);
    connection.transport = std::make_unique<MpiTransport>(world);
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
  mydist::MpiTransport::chunk_bytes.store(chunk_bytes);
}

}  // extern "C"
