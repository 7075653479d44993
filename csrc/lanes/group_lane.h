// GroupLane: a group of ranks that execute operations in the order in which each of them submits
// them. Nothing is negotiated and nothing is fused: all members submit the same operations in one
// order, as torch.distributed asks of a process group. Groups are independent of each other and of
// the engine: a lane has connections and shared memory of its own, so lanes may be used from
// several threads in crossed order. Before data is touched, the members compare what they are about
// to do.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "algorithms/collectives.h"
#include "base/clock.h"
#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"
#include "config/config.h"
#include "controller/messages/request.h"
#include "engine/progress_news.h"
#include "lanes/lane_call.h"
#include "lanes/lane_journal.h"
#include "lanes/lane_posts.h"
#include "lanes/lane_start.h"
#include "world/rank_ends.h"
#include "world/watchdog.h"

namespace mydist {

// What an operation works with. Ranks, roots and peers are indices in the group.
class MYDIST_EXPORT LaneSite {
 public:
  explicit LaneSite(const LaneGround* ground) : ground_(*ground) {}

  int rank() const { return ground_.topology.rank; }
  int size() const { return ground_.topology.size; }
  // kInternal when no algorithm supports it.
  Result<Collectives*> For(const BatchTraits& traits) const;
  // For what only moves bytes on the host.
  Result<Collectives*> ForBytes(OpKind op) const {
    return For({op, DataType::kUint8, ReduceOp::kSum, kHostMemory, 0});
  }

 private:
  static constexpr int32_t kHostMemory = -1;

  const LaneGround& ground_;
};

// LaneWork: one operation of a lane. Shared by the lane and the caller; any thread may ask.
class MYDIST_EXPORT LaneWork {
 public:
  using Run = std::function<Status(const LaneSite&)>;
  using Done = std::function<void(const Status&)>;

  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  // Of the operation, once it is done.
  const Status& status() const { return status_; }
  uint64_t sequence() const { return sequence_; }

 private:
  friend class GroupLane;

  LaneCall call_;
  Duration limit_{};
  int64_t record_ = FlightRecorder::kNoRecord;
  Run run_;
  Done done_;
  uint64_t sequence_ = 0;
  Status status_;
  std::atomic<bool> is_done_{false};
};

class MYDIST_EXPORT GroupLane final : public Watchdog {
 public:
  // Connects the members. Blocking; collective over them. The errors are those of process::Init.
  static Result<std::shared_ptr<GroupLane>> Open(const LaneOptions& options, const Config& config);
  ~GroupLane() override { Shutdown(); }
  GroupLane(const GroupLane&) = delete;
  GroupLane& operator=(const GroupLane&) = delete;

  const std::string& name() const { return name_; }
  int rank() const { return ground_->topology.rank; }
  int size() const { return ground_->topology.size; }

  // Of the program.
  int world_rank() const { return WorldRank(rank()); }
  bool Has(int world_rank) const;
  // The ranks of the program that this one watches in this lane, by heartbeats.
  std::vector<int> Watched() const;
  // A rank of the program that is a member gives no sign of life: all ends with kPeerLost. The
  // other members hear of it by Abort. Does not wait.
  void OnSilence(int world_rank, Duration silence);

  // Enqueues an operation. `run` executes it, on whichever thread drives the lane; memory stays
  // valid until `done` is called, on the same thread, without any lock, right before the work is
  // done. Meanwhile another thread may execute what follows, so `done` may wait for that. `limit`:
  // how long the operation may wait for other members once it has begun. `is_attended`: the caller
  // waits for it at once, so no thread needs to be woken.
  std::shared_ptr<LaneWork> Submit(const LaneCall& call, Duration limit, LaneWork::Run run,
                                   LaneWork::Done done, bool is_attended);
  // Returns when the work is done, or `deadline` has passed: false. Drives the lane meanwhile,
  // unless another thread does; with a deadline, a thread of the lane does.
  bool Wait(const LaneWork& work, TimePoint deadline);
  // All that is pending or comes later ends with this error, messages too, and the other members
  // hear of it. The first call counts.
  void Abort(const Status& why);
  // Waits for the operation under way, on whichever thread; those behind it end with kAborted, as
  // all later ones do. A second call does nothing. Not from a callback of an operation.
  void Shutdown();
  // kInvalidArgument in a forked child, which may not use the memory and threads of its parent.
  Status CheckProcess() const;
  // What all later operations end with; OK while the lane works.
  Status Stopped() MYDIST_EXCLUDES(mutex_);
  // Whether this member has given up by itself, not because of what another one has told.
  bool IsOwn(const Status& error) const;
  // Numbers of operations: how many have been submitted.
  uint64_t sequence();

  // Messages between two members, beside the queue.
  LanePosts& posts() { return posts_; }

  // A message between this rank and another one, for what a user can see. `peer`: an index in the
  // group, or LanePosts::kAnySource.
  void NoteSent(int peer, int tag, int64_t bytes);
  int64_t NoteAwaited(int peer, int tag, int64_t bytes);
  void NoteReceived(int64_t record, int peer, int tag, int64_t bytes, const Status& status);

  // A caller has waited for so long for a message from `source`, an index in the group or
  // LanePosts::kAnySource. Warns when it is time, as Look does; `next_warning` is the caller's,
  // zero at first. kTimeout after MYDIST_STALL_SHUTDOWN_SECONDS, or the error of another member
  // that has given up: all ends with it then. Any thread.
  Status LookForMessage(int source, int tag, Duration waited, Duration& next_warning);
  // No message has come within this time.
  Status MessageTimeout(int source, int tag, Duration limit) const;
  // The last part of LookForMessage, for those that wait for several members.
  Status LookForGivenUp();

  // See Watchdog; of the operation under way.
  Status Look(TimePoint begin, std::span<const int> peers) override;

 private:
  GroupLane(const LaneOptions& options, std::unique_ptr<LaneGround> ground);

  // The other members watch this rank from now on, and it watches them.
  Status StartHeartbeat();
  void EndAll(const Status& why) MYDIST_EXCLUDES(mutex_);
  // Executes what is in the queue until `work` is done; null: until the queue is empty.
  void DriveFor(const LaneWork* work) MYDIST_REQUIRES(mutex_);
  Status Execute(LaneWork& work) MYDIST_EXCLUDES(mutex_);
  Status ExecuteRecorded(LaneWork& work) MYDIST_EXCLUDES(mutex_);
  // The operation under way waits for these members: "group '0', operation 17, …: rank 1 (host a,
  // pid 7) did not take part within 10.0 s".
  // "group '0', operation 17, allreduce of 4 float32, Sum".
  std::string Title(const LaneWork& work) const;
  // Which ranks of the program these members are, where their numbers differ.
  std::string WorldNote(std::span<const int> peers) const;
  std::string WaitText(std::span<const int> peers, Duration waited) const;
  // "group '0': no message from rank 1 (host a, pid 7) with tag 0 came within 10.0 s".
  std::string MessageText(int source, int tag, Duration waited) const;
  // "rank 1 (host a, pid 7)", and of a single rank what its process does.
  struct Peers {
    std::string names;
    std::string state;
  };
  Peers Describe(std::span<const int> peers) const;
  // " within 10.0 s", and what else is known of them.
  std::string WithinText(std::span<const int> peers, const Peers& whom, Duration waited) const;
  int WorldRank(int peer) const { return peer < 0 ? -1 : ranks_[static_cast<size_t>(peer)]; }
  LaneJournal::Message MessageOf(int sender, int receiver, int tag, int64_t bytes) const {
    return {WorldRank(sender), WorldRank(receiver), tag, bytes};
  }
  void Poison(const Status& why) MYDIST_EXCLUDES(mutex_);
  // For the user. "allreduce", "operation 17".
  void NoteFailure(const Status& status, std::string_view operation, const std::string& which);
  // Tells the other members, which would wait for this one. By the thread that drives.
  void TellOthers() MYDIST_EXCLUDES(mutex_);
  // The error with what the other members are told of it.
  Status Told(const Status& error) const;
  // The error, with what each member has completed last in this group, as far as it is known.
  Status WithProgress(const Status& error) const;
  // The error of an operation with its name and, of a rank that has died, with the signal.
  Status Described(const LaneWork& work, const Status& error);
  Status Agree(const LaneWork& work);
  Result<std::string> DifferenceText(const LaneWork& work, const char* difference);
  // Has a thread of the lane look at the queue.
  void CallThread() MYDIST_REQUIRES(mutex_);
  void StartThread() MYDIST_REQUIRES(mutex_);
  void ThreadLoop() MYDIST_EXCLUDES(mutex_);

  const std::string name_;
  const std::vector<int> ranks_;  // Of the program.
  const pid_t pid_ = getpid();
  const std::unique_ptr<LaneGround> ground_;
  const std::shared_ptr<LaneJournal> journal_;
  const std::shared_ptr<LaneJournal::Page> page_;
  LanePosts posts_;
  std::vector<uint8_t> calls_;  // Of all members, for Agree; kept for its memory.
  // Of the operation under way; used by the thread that drives.
  TimePoint begin_ = kPast;
  Duration next_warning_ = Duration::max();  // After the beginning.
  const LaneWork* current_ = nullptr;
  ProgressNews news_;
  Request last_;  // What it tells next; of the thread that drives.
  RankEnds ends_;
  std::atomic<bool> is_watching_{false};
  std::vector<std::thread> tellers_;  // Of the heartbeat's thread, while that runs.

  Mutex mutex_;
  CondVar changed_;  // For callers.
  CondVar wanted_;   // For the lane's threads, which a caller that drives does not wake.
  std::deque<std::shared_ptr<LaneWork>> queue_ MYDIST_GUARDED_BY(mutex_);
  uint64_t submitted_count_ MYDIST_GUARDED_BY(mutex_) = 0;
  bool is_driven_ MYDIST_GUARDED_BY(mutex_) = false;
  bool is_closing_ MYDIST_GUARDED_BY(mutex_) = false;
  Status error_ MYDIST_GUARDED_BY(mutex_);  // The first one: the members are out of step then.
  std::atomic<bool> is_aborted_{false};
  // From the first unattended operation on; more when callbacks keep the others.
  std::vector<std::thread> threads_ MYDIST_GUARDED_BY(mutex_);
  int idle_threads_ MYDIST_GUARDED_BY(mutex_) = 0;
};

}  // namespace mydist
