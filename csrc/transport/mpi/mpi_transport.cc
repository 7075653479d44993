#include "transport/mpi/mpi_transport.h"

#include <mpi.h>
#include <sched.h>

#include <atomic>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/mpi/mpi_world.h"
#include "transport/mpi/poll_backoff.h"
#include "transport/mpi/transfer_counts.h"
#include "world/late_writes.h"

namespace mydist {
namespace {

// MPI moves data only inside its calls, so the pauses begin late: after this long without
// any piece complete, the peers are busy with something else.
constexpr Duration kEager = std::chrono::milliseconds(2);
constexpr Duration kLongestPause = std::chrono::microseconds(500);
// How long what a rank sent before its goodbye may take to arrive.
constexpr Duration kGoodbyeGrace = std::chrono::milliseconds(500);

std::atomic<int64_t> g_chunk_bytes{int64_t{1} << 30};

// Long transfers go in pieces of g_chunk_bytes, since MPI counts are ints, short ones in pieces
// that MPI sends at once. One tag for all: MPI keeps the order per pair of ranks.
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

 private:
  static constexpr int kTensorTag = 1;

  Status PostAll(std::span<const SendTransfer> sends, std::span<const ReceiveTransfer> receives) {
    const int64_t limit = g_chunk_bytes.load();
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
        world_->counts().BeginSend(send.peer);
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
      Count(std::span(completed_).first(static_cast<size_t>(count)));
      left -= static_cast<size_t>(count);
      const TimePoint now = Now();
      if (count > 0) {
        backoff.Reset(now);
        wait.Restart(now);
      } else if (const Duration pause = backoff.Next(now); pause > Duration::zero()) {
        MYDIST_ASSIGN_OR_RETURN(const Departed departed, DepartedPeer());
        if (grace.IsOver(departed.peer, now) || departed.is_over) {
          return world_->HasLeft(departed.peer);
        }
        if (wait.IsDue(now)) MYDIST_RETURN_IF_ERROR(wait.Look(AwaitedPeers(), now));
        std::this_thread::sleep_for(pause);
      } else {
        sched_yield();
      }
    }
    return Status::Ok();
  }
  void Count(std::span<const int> completed) {
    for (const int request : completed) {
      const auto index = static_cast<size_t>(request);
      if (index < receive_count_) {
        world_->counts().EndReceive(peers_[index]);
      } else {
        world_->counts().EndSend(peers_[index]);
      }
    }
  }
  // A rank of a transfer under way that has said goodbye; -1: none. It will not do its part, but
  // may have done so before. `is_over`: it has told that it has not.
  struct Departed {
    int peer = -1;
    bool is_over = false;
  };
  Result<Departed> DepartedPeer() const {
    Departed found;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      const int peer = peers_[i];
      MYDIST_ASSIGN_OR_RETURN(const bool departed, world_->HasSaidGoodbye(peer));
      if (!departed) continue;
      MYDIST_ASSIGN_OR_RETURN(const auto told, world_->CountsOf(peer));
      const TransferCounts& counts = world_->counts();
      const bool may_complete = !told || (i < receive_count_ ? counts.MayReceive(peer, *told)
                                                             : counts.MaySend(peer, *told));
      if (!may_complete) return Departed{peer, true};
      if (found.peer < 0) found.peer = peer;
    }
    return found;
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

}  // namespace

std::unique_ptr<Transport> MakeMpiTransport(std::shared_ptr<MpiWorld> world) {
  return std::make_unique<MpiTransport>(std::move(world));
}

void SetMpiChunkBytes(int64_t bytes) { g_chunk_bytes.store(bytes); }

}  // namespace mydist
