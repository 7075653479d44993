// Engine: one per process and init; takes tensors from callers and returns them reduced:
// enqueue → negotiate → fuse → reduce → complete. Owned by the process instance.
// Submit, Wait and the timeline calls may come from any thread, Shutdown from one; everything else
// is done by the thread that holds the engine role: the engine's own thread, or a caller in Wait,
// which may sleep with it (decision 0007). It shares with callers: the queue, the HandleTable, the
// ProcessSetRegistry, the Timeline and, inside the executor, DeviceLinks and FactBoard. The role
// holder has not the GIL, and no lock but the role across a socket, collective or callback; a
// thread that may have the GIL never waits for the role.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "algorithms/device/device_plugin.h"
#include "base/mutex.h"
#include "config/config.h"
#include "controller/coordinator.h"
#include "engine/executor.h"
#include "engine/flight_dumper.h"
#include "engine/flight_recorder.h"
#include "engine/handle_table.h"
#include "engine/progress_news.h"
#include "engine/stall_guard.h"
#include "engine/submission.h"
#include "engine/tensor_queue.h"
#include "engine/timeline_relay.h"
#include "engine/watch_seat.h"
#include "planner/bucket_plan.h"
#include "planner/collectives_choice.h"
#include "planner/device_path.h"
#include "timeline/event.h"
#include "transport/factory.h"
#include "transport/shm_transport.h"
#include "transport/subset_transport.h"
#include "world/peer_findings.h"
#include "world/rank_ends.h"
#include "world/topology.h"

namespace mydist {

struct EngineOptions {
  Config config;
  Topology topology;
  Connection connection;
  std::shared_ptr<HandleTable> handles;     // Reset for this engine; outlives it.
  std::shared_ptr<shm::ShmPort> shm;        // Null: the ranks of this host share no memory.
  bool shares_everywhere = false;           // On every host of the job, or it has one rank.
  bool wants_timeline = false;              // From the start, on all ranks; rank 0 has the path.
  DevicePlugin* devices = nullptr;          // Null: no tensors on GPUs.
  std::vector<std::string> nccl_folders{};  // See NcclPlaces.
  WaitPolicy wait_policy{};
  RankEnds rank_ends{};  // How the processes of ranks have ended.
  std::shared_ptr<FlightRecorder> recorder = std::make_shared<FlightRecorder>();
  std::shared_ptr<FlightDumper> dumper{};  // Null: nothing is dumped.
  bool measures_costs = false;  // Start then waits for all ranks; see planner/collectives_choice.h.
};

// What the engine has counted since init; shown by mydist.stats().
struct EngineStats : CoordinatorStats {
  int64_t wakeups = 0;       // Times the engine's thread slept and was woken.
  int64_t hand_overs = 0;    // Times a waiting caller left the rest to another thread.
  int64_t batches = 0;       // Collectives executed.
  int64_t tensors = 0;       // Tensors they completed.
  int64_t tensor_bytes = 0;  // This rank's input bytes of those tensors.
  // From the last own tensor of each batch until all ranks were ready for it: the rank that the
  // others wait for has the smallest one.
  int64_t wait_us = 0;
  // Of tensors, to ranks on other hosts; a transfer is one message, however the backend cuts it.
  int64_t inter_host_messages_sent = 0;
  int64_t inter_host_bytes_sent = 0;
  int64_t pack_bytes = 0;  // Of them, those that an allreduce copied into the fusion buffer.
  // Chunks of a tensor on a GPU whose copies to the host had been ordered before the first of them
  // was exchanged, at most.
  int64_t most_staged_chunks = 0;
  int64_t strategy_rounds = 0;  // Means over ranks that strategies have ended.
  int64_t overflows = 0;  // Collectives in which this rank reduced finite numbers to infinite ones.
};

class MYDIST_EXPORT Engine {
 public:
  // kInternal when there is no thread to be had.
  static Result<std::shared_ptr<Engine>> Start(EngineOptions options);
  ~Engine();

  // What heartbeats have found out about another rank. Any thread.
  void Report(const PeerFinding& finding);
  // What ranks have completed last; heartbeats carry it.
  ProgressNews& progress() { return progress_; }

  // Enqueues tensors that complete together under one handle. Never waits for a peer.
  // kInvalidArgument at once for a name already in flight (naming it) and for a process set that is
  // unknown or has not this rank; the engine's sticky error, if it has failed. All or nothing: on
  // error no tensor has been enqueued.
  Result<Handle> Submit(std::vector<Submission> tensors, Pace pace = Pace::kNow);
  // What was submitted with another pace than kNow is due. Cheap when there is nothing.
  void Hurry();
  // Waits until complete and releases the handle, or gives nothing when `deadline` passes first; a
  // batch that has begun is ended whatever the deadline. Drives the engine, unless another thread
  // does, while that leads anywhere.
  Result<std::optional<Status>> Wait(Handle handle, TimePoint deadline);
  // Of callers that wait again and again, for as long as they do: what they wait for is not held
  // back for long. Outlives the engine.
  std::shared_ptr<std::atomic<int>> patient_callers() const { return patient_callers_; }
  // Starts (or stops) the timeline on all ranks. On rank 0 it returns when that has taken effect:
  // every collective submitted afterwards is recorded (or not). Elsewhere it does nothing: one
  // timeline per job, decided by rank 0.
  Status StartTimeline(const std::string& path, bool mark_cycles);
  Status StopTimeline();
  // A strategy of an optimizer begins to average over the ranks, or has the mean. The timeline
  // shows `text` between both on `lane`; one round at a time on a lane.
  void BeginRound(std::string_view lane, std::string_view text);
  void EndRound(std::string_view lane);
  // What another part of mydist has done, for the timeline. Any thread.
  bool is_recording() const { return timeline_.enabled(); }
  void RecordSpan(std::string_view lane, std::string_view name, TimePoint begin, Duration duration,
                  std::string_view text) {
    timeline_.RecordSpan(lane, name, begin, duration, text);
  }
  // This rank is out of data: until every rank has joined it takes part in whatever the others
  // submit with elements that change nothing, and must submit nothing itself. The handle completes
  // when all have; `on_numbers` is told the rank that joined last. kInvalidArgument for a second
  // call meanwhile.
  Result<Handle> Join(NumbersCallback on_numbers);
  // kInvalidArgument for a set that is unknown or has been removed.
  Result<ProcessSet> GetProcessSet(ProcessSetId id) const { return process_sets_.Find(id); }

  // At least `bytes` (more than 0) of memory that all ranks of this host can reach, so that tensors
  // in it are reduced where they lie; aligned to 128 bytes. Any thread; without a word to the other
  // ranks. It stays valid after shutdown, but only helps until then. Null when the ranks share no
  // memory or, of which one rank of the host warns once with needed and free bytes, it is full:
  // private memory does as well.
  using InForkedChild = shm::ArenaHeap::InForkedChild;
  std::shared_ptr<uint8_t> AllocateShared(int64_t bytes,
                                          InForkedChild in_child = InForkedChild::kCopy) const;
  // This rank is going to ask for so many bytes (0 or more): warns already now if there is no room.
  void ForeseeShared(int64_t bytes) const;

  // See process::Shutdown. Returns when the engine's thread has ended, or, should a collective of
  // it be stuck with a peer that is gone, after twice the drain time and three seconds. One caller
  // at a time; a second call does nothing. False when the thread was left behind: the memory of
  // tensors in flight must then never be freed.
  bool Shutdown(bool awaits_living = true, const std::function<bool()>& is_wanted = nullptr);

  const Topology& topology() const { return topology_; }
  const Config& config() const { return config_; }
  const PathCosts& costs() const { return costs_; }
  // What this engine does as it does, and why, for mydist.explain().
  std::vector<Fact> Explain() const;
  EngineStats stats() const;
  const FlightRecorder& recorder() const { return *recorder_; }
  // Of what the engine does not execute; its track should have a name that no tensor has. An engine
  // that sleeps carries the events off in time. Any thread.
  bool records_events() const { return timeline_.enabled(); }
  void RecordEvent(EventPhase phase, std::string_view track, std::string_view name,
                   std::string_view args);

 private:
  struct Depart {
    bool awaits_living;  // Ranks that have not shut down, and give answers. A second one: no rank.
  };
  struct JoinCommand {
    Handle handle = 0;
    NumbersCallback on_numbers;
    int64_t record = FlightRecorder::kNoRecord;

    // Stands for it where tensors have their keys: one join at a time.
    static TensorKey key() { return {-1, "join"}; }
  };
  struct TimelineSwitch {
    bool start;
    std::string path;
    bool mark_cycles;
    Handle handle;  // Completes when the switch has taken effect.

    // Stands for the switch where tensors have their keys: one switch at a time.
    static TensorKey key() { return {-1, "timeline switch"}; }
  };
  // How long rank 0 waits at the end for timeline events still on their way.
  static constexpr std::chrono::seconds kTimelineGrace{1};
  // How long the end of the engine's thread may take beyond the drain time.
  static constexpr std::chrono::seconds kExitGrace{1};
  // How often a caller that shuts down is asked whether it still waits for other ranks.
  static constexpr std::chrono::milliseconds kInterruptCheck{100};
  // shutdown() tells so often that it waits for the timeline's disk.
  static constexpr std::chrono::seconds kDiskLine{10};
  // How long the others may take to leave after a start that has failed.
  static constexpr std::chrono::milliseconds kStartGrace{200};
  // How long the engine's thread leaves the engine to a caller that drives it.
  static constexpr std::chrono::milliseconds kYieldToCaller{1};
  // Of one call; announced together.
  struct Tensors {
    Handle handle = 0;
    std::vector<Submission> submissions;
  };
  using Mail = std::variant<Tensors, Depart, TimelineSwitch, JoinCommand>;
  using Group = std::vector<std::shared_ptr<const Agreement>>;

  explicit Engine(EngineOptions options);
  // OK and null when the ranks share no memory, an error when there is no room.
  Result<std::shared_ptr<uint8_t>> TakeFromHeap(int64_t bytes, InForkedChild in_child) const;
  // One rank of the host, once.
  void WarnOfPrivateMemory(const char* what, const Status& why) const;
  Status MeasureCosts();
  void LeaveAtStart(const Status& why);
  Status CheckUnused(ProcessSetId set);
  // `unhurried_bytes`: 0 when it is due now.
  Status Post(Mail mail, int64_t unhurried_bytes);
  // Of one that has a handle, which fails when the engine is closed.
  template <typename Command>
  void PostCommand(Command command);

  void Run();
  void SleepUntilDue() MYDIST_REQUIRES(role_);
  // One pass over the six steps, without waiting for news. What ends the engine is kept in outcome_
  // for its own thread.
  void RunCycle() MYDIST_REQUIRES(role_);
  // False when the engine is finished.
  Result<bool> RunSteps();
  void Finish() MYDIST_REQUIRES(role_);
  // On a caller's thread: cycles until the handle is complete or it is better to sleep.
  void DriveOrHandOver(Handle handle, TimePoint deadline);
  void Drive(Handle handle, TimePoint deadline) MYDIST_RELEASE(role_);
  // The caller leaves it to the thread that drives, or to the engine's own.
  void HandOver();
  // Until the handle is complete (true), the engine is to end or `deadline` has passed.
  bool DriveOn(Handle handle, TimePoint deadline) MYDIST_REQUIRES(role_);
  // In place of the engine's thread. The first time in a drive only takes its seat.
  void SleepDriving(TimePoint deadline) MYDIST_REQUIRES(role_);
  void EndDrive(bool is_over) MYDIST_REQUIRES(role_);
  // Whether a thread of this rank waits for messages.
  bool HasInFlight() const;
  bool IsOver(Handle handle);
  // Changes when something has happened.
  int64_t Progress() const;
  // When a cycle is due even if nothing is submitted and no message comes.
  TimePoint NextDeadline() MYDIST_REQUIRES(role_);
  // `now`: when the cycle began; reading the clock costs as much as a step of it.
  void Drain(TimePoint now);
  Status Exchange(TimePoint now);
  Result<std::vector<Response>> Negotiate(TimePoint now);
  std::vector<Group> Plan(const std::vector<Response>& responses) const;
  // Whether what this rank waits for between collectives has taken too long.
  Status FollowStall(TimePoint now);
  Status Execute(const Group& group);
  void Complete(const std::vector<Response>& responses);

  void Obey(Tensors tensors, TimePoint now);
  void Obey(Depart command, TimePoint now);
  void Obey(JoinCommand command, TimePoint now);
  void Obey(TimelineSwitch command, TimePoint now);
  Status SwitchTimeline(TimelineSwitch command);
  void CompleteTimelineSwitches(const Status& status);
  void HandleNotice(const Response& response);
  void FailTensor(TensorKeyView key, const Status& why);
  void NoteStall(const std::string& warning);
  // In the reduction of this group.
  void NoteOverflow(const Group& group);
  void HandleDeparture(const Response& response);
  void WarnOfUnawaited();
  void HandleAllJoined(const Response& response);
  void ChangeProcessSets(const Response& response);
  // What this rank has in flight for the agreement; neutral elements when it has joined.
  PendingTensor* Contribution(const Agreement& agreement);
  void CompleteTensor(TensorKeyView key, const Status& status, TimePoint now = Now());
  // Writes the last operations to a file, where the user wants that.
  void Dump(FlightOccasion occasion, const std::string& message) const;
  // Other ranks wait for this one, and ask.
  void PrintStacks();
  // Records the phases of a batch; `open` is the one that has not ended.
  ActivitySink ActivitiesOf(const Group& group, std::string* open);
  void RecordForGroup(const Group& group, EventPhase phase, std::string_view name);
  void CollectTimeline();
  void FailPending(const Status& reason);
  void FailJoin(const Status& why);
  // `pending`: what this rank has in flight for it, or null.
  static Failure FailureOf(const Request& request, const char* phase, const PendingTensor* pending);
  static Status Refused(const Status& why, const Request& request);
  void LogFailure(const Status& status) const;
  void Stop(const Status& status);
  void PublishStats();
  // Of the engine's thread. False when `deadline` passed.
  bool AwaitExit(TimePoint deadline);
  // The same for as long as that thread looks after other ranks.
  bool AwaitLeave(const std::function<bool()>& is_wanted);

  const Config config_;
  const Topology topology_;
  Connection connection_;
  const std::shared_ptr<shm::ShmPort> shm_;
  ProgressNews progress_;
  const std::shared_ptr<HandleTable> handles_;
  const EngineTerm term_;
  const std::shared_ptr<FlightRecorder> recorder_;
  const std::shared_ptr<FlightDumper> dumper_;
  TensorQueue<Mail> queue_;
  std::atomic<int64_t> unhurried_bytes_{0};  // In the queue, and the engine has not been woken.
  Timeline timeline_;
  ProcessSetRegistry process_sets_;
  const std::unique_ptr<VoteBoard> votes_;  // Null when the ranks have nothing to vote with.
  Coordinator coordinator_;
  StallGuard guard_;
  HostMeter* const meter_;  // Around the connection's transport; null for a job of one rank.
  const CollectivesChoice choice_;
  const DeviceChoice device_choice_;
  Executor executor_;
  PathCosts costs_;  // Written before the thread starts.
  TimelineRelay relay_;
  PendingTable pending_;
  std::vector<Handle> timeline_switches_;  // Requested and not yet seen in the stream.
  std::string left_text_;                  // Of the rank that has left last.
  // Failed when a rank left, before this rank does: their handles, and what the log is to say.
  std::vector<Handle> failed_handles_;
  std::string failed_text_;
  std::optional<JoinCommand> join_;  // Until all ranks have joined.
  const char* switch_name_ = "";     // The last call that switches the timeline.
  TimePoint called_at_;              // The last of both.
  bool finished_ = false;
  Status overdue_;  // What peers are told when this rank waits no longer for them to leave.
  // When the engine, which waits for others before it leaves, last looked at them.
  std::atomic<TimePoint> left_alive_at_{TimePoint::min()};
  std::atomic<bool> closes_timeline_{false};  // Nothing but its disk is waited for any more.

  Mutex role_;
  std::optional<Status> outcome_ MYDIST_GUARDED_BY(role_);  // Of the engine, once it is to end.
  // Of the engine's thread, while it waits; in the past otherwise. Written by that thread only.
  std::atomic<TimePoint> sleeps_until_{TimePoint::min()};
  const WaitPolicy policy_;
  WatchSeat seat_;
  TimePoint drive_end_ MYDIST_GUARDED_BY(role_);
  bool has_seat_ MYDIST_GUARDED_BY(role_) = false;   // The thread that drives.
  bool is_series_ MYDIST_GUARDED_BY(role_) = false;  // This drive, by when it took the seat.
  // After a drive news does not yet wake the engine's thread: the next drive is expected.
  bool lingers_ MYDIST_GUARDED_BY(role_) = false;
  TimePoint printed_stacks_at_ = kPast;
  int64_t drained_count_ = 0;
  int64_t negotiated_count_ = 0;
  std::atomic<int> waiting_callers_{0};
  const std::shared_ptr<std::atomic<int>> patient_callers_ = std::make_shared<std::atomic<int>>(0);
  std::atomic<int64_t> hand_overs_{0};
  std::atomic<int64_t> strategy_rounds_{0};

  EngineStats counted_;  // The role holder's own; published after each cycle.
  mutable Mutex stats_mutex_;
  EngineStats stats_ MYDIST_GUARDED_BY(stats_mutex_);

  std::thread thread_;
  Mutex exit_mutex_;
  CondVar exited_;
  bool has_exited_ MYDIST_GUARDED_BY(exit_mutex_) = false;
};

}  // namespace mydist
