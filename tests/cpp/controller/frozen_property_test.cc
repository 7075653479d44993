// A hundred thousand jobs that freeze their schedule and deviate from it, each with the real
// coordinators, on one host or several, an order of events of its own and one deviation: whatever
// happens, every tensor is reduced exactly once, in one batch and one order on all its ranks, and
// nothing hangs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>

#include "conformance/sanitizers.h"
#include "controller/call_number.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

#ifdef NDEBUG
constexpr bool kIsDebugged = false;
#else
constexpr bool kIsDebugged = true;
#endif
constexpr uint32_t kSeedsPerShard = kIsSanitized || kIsDebugged ? 100 : 5000;
constexpr uint32_t kShards = 20;
constexpr int kFreezeAfter = 2;

enum class Deviation {
  kNone,
  kNewTensor,      // For one step.
  kMissingTensor,  // In one step.
  kOtherShape,     // From one step on.
  kOtherOp,        // In one step.
  kMismatch,       // One rank asks for something else: an error for all.
  kOtherOrder,     // One rank turns a step round.
  kWaitsInOrder,   // It also waits for each tensor, which the others do not.
  kStall,          // One rank does nothing for a minute.
  kTimeline,       // Rank 0 starts it.
  kNewSet,         // All ranks add a process set.
  kJoin,           // One rank runs out of data early.
  kLeave,          // One rank leaves early.
  kCrash,
  kFail,          // The engine of one rank stops with an error, at any time; its process lives on.
  kFailSilently,  // The same, and the stream does not tell.
};
constexpr int kDeviationCount = 16;

// Whether a rank stops without waiting for the others.
bool StopsShort(Deviation deviation) {
  return deviation == Deviation::kCrash || deviation == Deviation::kFail ||
         deviation == Deviation::kFailSilently;
}

constexpr const char* kNames[] = {"t0", "t1", "t2", "t3", "t4", "t5", "extra", "set"};
constexpr int kExtra = 6;
constexpr int kAddSet = 7;

// How a rank waits.
enum class Style { kEach, kStep, kNotBeforeTheEnd };

struct Call {
  int tensor = 0;
  Request request;
  bool waits = false;  // For all that it has in flight, afterwards.
};

struct Program {
  explicit Program(uint32_t seed);

  bool Has(int tensor, int rank) const {
    const std::vector<int>& ranks = sets[static_cast<size_t>(set_of[static_cast<size_t>(tensor)])];
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }
  int Draw(int count) { return static_cast<int>(random() % static_cast<uint32_t>(count)); }
  void AddStep(int rank, int step, Style style);
  std::optional<Request> At(int tensor, int rank, int step) const;

  std::mt19937 random;
  Deviation deviation;
  int size;
  int radix;
  std::vector<int> hosts;  // Of each rank; empty: all on one.
  int steps;
  int deviating_step;
  int deviating_rank;
  int deviating_tensor;
  std::array<bool, 8> is_unnamed = {};  // Calls of it have a number, and it may be in flight twice.
  std::vector<std::vector<int>> sets;   // By number; 0 is the job.
  std::array<int, 8> set_of = {0, 0, 0, 0, 0, 0, 0, 0};
  std::vector<int> order;                // Tensors of a step.
  std::vector<std::vector<Call>> calls;  // By rank.
  std::vector<size_t> stall_at;          // By rank: before this call; or never.
};

Program::Program(uint32_t seed) : random(seed) {
  deviation = static_cast<Deviation>(Draw(kDeviationCount));
  size = 2 + Draw(4);
  radix = 1 + Draw(5);
  // In any order, with any number of ranks each.
  if (const int host_count = 1 + Draw(3); host_count > 1) {
    for (int rank = 0; rank < size; ++rank) hosts.push_back(Draw(host_count));
  }
  steps = 4 + Draw(4);
  deviating_step = 2 + Draw(steps - 2);
  deviating_rank = Draw(size);
  sets.emplace_back();
  for (int rank = 0; rank < size; ++rank) sets[0].push_back(rank);
  for (int set = 1; set <= Draw(3); ++set) {
    std::vector<int>& ranks = sets.emplace_back();
    for (int rank = 0; rank < size; ++rank) {
      if (Draw(3) > 0) ranks.push_back(rank);
    }
    if (ranks.empty()) ranks.push_back(Draw(size));
  }
  const int tensors = 1 + Draw(6);
  for (int tensor = 0; tensor < tensors; ++tensor) {
    order.push_back(tensor);
    set_of[static_cast<size_t>(tensor)] = Draw(static_cast<int>(sets.size()));
    is_unnamed[static_cast<size_t>(tensor)] = Draw(3) == 0;
  }
  set_of[kExtra] = Draw(static_cast<int>(sets.size()));
  // Sometimes a tensor comes twice in a step.
  if (deviation != Deviation::kWaitsInOrder && Draw(4) == 0) order.push_back(Draw(tensors));
  std::shuffle(order.begin(), order.end(), random);
  deviating_tensor = order[static_cast<size_t>(Draw(static_cast<int>(order.size())))];
  calls.resize(static_cast<size_t>(size));
  stall_at.assign(static_cast<size_t>(size), SIZE_MAX);
  for (int rank = 0; rank < size; ++rank) {
    Style style = static_cast<Style>(Draw(3));
    // The others must not wait for what this rank only submits later.
    const bool needs_patience =
        deviation == Deviation::kWaitsInOrder || deviation == Deviation::kOtherOrder;
    if (needs_patience && style == Style::kEach) style = Style::kStep;
    for (int step = 0; step < steps; ++step) AddStep(rank, step, style);
  }
}

std::optional<Request> Program::At(int tensor, int rank, int step) const {
  Request request = MakeRequest(kNames[tensor], {4, 2});
  const bool deviates = tensor == deviating_tensor && step == deviating_step;
  if (deviates && deviation == Deviation::kMissingTensor) return std::nullopt;
  if (deviates && deviation == Deviation::kOtherOp) request.op = OpKind::kAllgather;
  if (deviates && deviation == Deviation::kMismatch && rank == deviating_rank) {
    request.dtype = DataType::kInt32;
  }
  if (tensor == deviating_tensor && step >= deviating_step && deviation == Deviation::kOtherShape) {
    request.shape = Shape({4, 3});
  }
  return request;
}

void Program::AddStep(int rank, int step, Style style) {
  std::vector<Call>& mine = calls[static_cast<size_t>(rank)];
  const bool is_deviant = step == deviating_step && rank == deviating_rank;
  const bool joins = deviation == Deviation::kJoin || deviation == Deviation::kLeave;
  if (joins && rank == deviating_rank && step >= deviating_step) return;
  if (is_deviant && deviation == Deviation::kStall)
    stall_at[static_cast<size_t>(rank)] = mine.size();
  std::vector<int> tensors = order;
  if (step == deviating_step && deviation == Deviation::kNewTensor) {
    tensors.insert(tensors.begin() + deviating_tensor % static_cast<int>(tensors.size()), kExtra);
  }
  if (step == deviating_step && deviation == Deviation::kNewSet) tensors.push_back(kAddSet);
  const bool turns_round =
      is_deviant && (deviation == Deviation::kOtherOrder || deviation == Deviation::kWaitsInOrder);
  if (turns_round) std::reverse(tensors.begin(), tensors.end());
  if (turns_round && deviation == Deviation::kWaitsInOrder) style = Style::kEach;
  for (const int tensor : tensors) {
    const bool takes_part = tensor == kAddSet || Has(tensor, rank);
    std::optional<Request> request = takes_part ? At(tensor, rank, step) : std::nullopt;
    if (!request) continue;
    if (tensor == kAddSet) {
      request->op = OpKind::kAddProcessSet;
      request->ranks = {0, size - 1};
    }
    mine.push_back({tensor, *std::move(request), style == Style::kEach});
  }
  if (style == Style::kStep && !mine.empty()) mine.back().waits = true;
}

// What a rank saw of a tensor.
struct Event {
  int set = 0;
  int tensor = 0;
  uint64_t number = 0;  // Of the call, if it has none for a name.
  int place = 0;        // Among those of its set in the batch.
  bool is_ready = false;

  bool operator==(const Event&) const = default;
};

// One rank that runs the program.
class Runner {
 public:
  Runner(const Program& program, SimulatedJob& job, int rank, std::vector<ProcessSetId> ids)
      : program_(program), job_(job), rank_(rank), ids_(std::move(ids)) {}

  void Begin() { next_batch_ = job_.batches(rank_).size(); }

  // Does one thing, if it can.
  void Act() {
    TakeAnswers();
    const std::vector<Call>& calls = program_.calls[static_cast<size_t>(rank_)];
    if (job_.HasCrashed(rank_) || has_left_) return;
    if (IsStopDue()) return Stop();
    const bool must_wait = waits_for_all_
                               ? in_flight_count_ > 0
                               : next_ < calls.size() && MustWaitFor(Tensor(calls[next_]));
    const bool is_over = next_ == calls.size();
    const bool waits = must_wait || (is_over && in_flight_count_ > 0);
    job_.coordinator(rank_).SetWaiting(waits, job_.now);
    if (waits || IsStalled()) return;
    waits_for_all_ = false;
    if (is_over) return End();
    Submit(calls[next_++]);
  }

  bool IsDone() const {
    return job_.HasCrashed(rank_) || has_finished_ || (has_ended_ && !Leaves());
  }
  const std::vector<Event>& events() const { return events_; }
  bool HasLeft() const { return has_left_; }
  bool SomebodyLeft() const { return somebody_left_; }
  std::array<int, 8> Submitted() const { return submitted_; }
  void TakeAnswers() {
    const auto& batches = job_.batches(rank_);
    for (; next_batch_ < batches.size(); ++next_batch_) {
      std::array<int, 3> places = {0, 0, 0};
      for (const Response& response : batches[next_batch_]) Take(response, places);
    }
  }
  std::string error() const { return error_; }

 private:
  static size_t Tensor(const Call& call) { return static_cast<size_t>(call.tensor); }
  bool MustWaitFor(size_t tensor) const {
    return in_flight_[tensor] > 0 && !program_.is_unnamed[tensor];
  }
  bool Leaves() const { return program_.deviation == Deviation::kLeave; }
  // Whatever it waits for by then.
  bool IsStopDue() {
    return StopsShort(program_.deviation) && rank_ == program_.deviating_rank &&
           next_ >= program_.calls[static_cast<size_t>(rank_)].size() / 2 &&
           job_.random()() % 4 == 0;
  }
  void Stop() {
    if (program_.deviation == Deviation::kCrash) return job_.Crash(rank_);
    const bool is_silent = program_.deviation == Deviation::kFailSilently;
    job_.Fail(rank_, is_silent ? Status::PeerLost("a cable") : Status::Internal("a disk"));
  }
  bool IsStalled() {
    if (program_.stall_at[static_cast<size_t>(rank_)] != next_) return false;
    if (stall_end_ == kNever) stall_end_ = job_.now + std::chrono::seconds(8);
    return job_.now < stall_end_;
  }

  void Submit(const Call& call) {
    Request request = call.request;
    if (call.tensor != kAddSet) {
      request.process_set = ids_[static_cast<size_t>(program_.set_of[Tensor(call)])];
    }
    if (program_.is_unnamed[Tensor(call)]) {
      request.name += ".noname." + std::to_string(submitted_[Tensor(call)] + 1);
    }
    if (program_.deviation == Deviation::kTimeline && rank_ == 0 &&
        next_ == program_.calls[0].size() / 2) {
      Check(job_.coordinator(0).RequestTimeline(true, false));
    }
    Check(job_.coordinator(rank_).Announce({std::move(request)}, job_.now));
    job_.MarkDue(rank_);
    waits_for_all_ = call.waits;
    ++in_flight_[Tensor(call)];
    ++in_flight_count_;
    ++submitted_[Tensor(call)];
  }

  void End() {
    if (std::exchange(has_ended_, true)) return;
    const bool joins = program_.deviation == Deviation::kJoin;
    if (joins) job_.Join(rank_);
    if (joins) has_ended_ = false;  // Until all are back.
    if (joins) has_left_ = true;
    if (Leaves()) Depart();
  }

  void Depart() {
    has_left_ = true;
    job_.Depart(rank_, "shutdown");
  }

  void Check(const Status& status) {
    if (!status.ok() && error_.empty()) error_ = status.ToString();
  }

  void Take(const Response& response, std::array<int, 3>& places) {
    switch (response.kind) {
      case ResponseKind::kAllJoined:
        has_ended_ = true;
        return;
      case ResponseKind::kFinished:
        has_finished_ = true;
        return;
      case ResponseKind::kDeparted:
        somebody_left_ = true;
        in_flight_ = {};
        in_flight_count_ = 0;
        if (!has_left_) Depart();
        return;
      case ResponseKind::kReady:
      case ResponseKind::kError:
        break;
      default:
        return;
    }
    const bool is_ready = response.kind == ResponseKind::kReady;
    if (is_ready && somebody_left_) error_ = "a tensor became ready after a rank had left";
    const std::string& name = is_ready ? response.agreement->request.name : response.name;
    const uint64_t number = CallNumber(MakeRequest(name)).value_or(0);
    const int tensor = name == "extra" ? kExtra : name == "set" ? kAddSet : name[1] - '0';
    const int set = program_.set_of[static_cast<size_t>(tensor)];
    events_.push_back({set, tensor, number, places[static_cast<size_t>(set)]++, is_ready});
    // Who has joined takes part in what it has not submitted.
    int& in_flight = in_flight_[static_cast<size_t>(tensor)];
    if (in_flight == 0) {
      if (!has_left_ && error_.empty()) error_ = "answered though not submitted: " + name;
      return;
    }
    --in_flight;
    --in_flight_count_;
    ++answered_;
  }

  const Program& program_;
  SimulatedJob& job_;
  const int rank_;
  const std::vector<ProcessSetId> ids_;
  size_t next_ = 0;
  size_t next_batch_ = 0;
  bool waits_for_all_ = false;
  bool has_ended_ = false;
  bool has_left_ = false;  // Or joined.
  bool has_finished_ = false;
  bool somebody_left_ = false;
  TimePoint stall_end_ = kNever;
  std::array<int, 8> in_flight_ = {};
  int in_flight_count_ = 0;
  int answered_ = 0;
  std::array<int, 8> submitted_ = {};
  std::vector<Event> events_;
  std::string error_;
};

std::vector<ProcessSetId> AddSets(const Program& program, SimulatedJob& job) {
  std::vector<ProcessSetId> ids = {kGlobalProcessSet};
  for (size_t set = 1; set < program.sets.size(); ++set) {
    Request add = MakeRequest("add", {0});
    add.op = OpKind::kAddProcessSet;
    add.ranks = {program.sets[set].begin(), program.sets[set].end()};
    job.AnnounceAll(add);
    job.RunUntilQuiet();
    ids.push_back(job.batches(0).back().back().added_set);
  }
  return ids;
}

// False when it does not come to an end.
bool Run(std::vector<Runner>& runners, SimulatedJob& job) {
  const TimePoint limit = job.now + std::chrono::minutes(5);
  Duration pause = std::chrono::milliseconds(10);
  int idle = 0;
  for (;;) {
    for (uint32_t steps = job.random()() % 6; steps > 0; --steps) {
      if (job.Progress()) idle = 0;
    }
    runners[job.random()() % runners.size()].Act();
    if (++idle < 8) continue;
    // Everybody waits, or is done: let time pass.
    while (job.Progress()) idle = 0;
    bool is_done = true;
    for (Runner& runner : runners) {
      runner.Act();
      is_done = is_done && runner.IsDone();
    }
    if (job.Progress()) idle = 0;
    if (is_done && idle > 0) return true;
    if (idle == 0) {
      pause = std::chrono::milliseconds(10);
      continue;
    }
    if (job.now > limit) return false;
    job.now += pause;
    pause = std::min<Duration>(pause * 2, std::chrono::seconds(4));
    job.MarkAllDue();
  }
}

std::vector<Event> Common(const Program& program, const std::vector<Runner>& runners, int a,
                          int b) {
  std::vector<Event> common;
  for (const Event& event : runners[static_cast<size_t>(a)].events()) {
    if (event.tensor == kAddSet || (program.Has(event.tensor, a) && program.Has(event.tensor, b))) {
      common.push_back(event);
    }
  }
  return common;
}

struct Totals {
  std::array<uint64_t, kDeviationCount> jobs = {};
  std::array<uint64_t, kDeviationCount> frozen = {};  // Jobs that had frozen steps.
  std::array<uint64_t, kDeviationCount> thawed = {};
  uint64_t voted_between_hosts = 0;  // Jobs.
};

// A rank that died or left knows only how it began.
void ExpectSameBeginning(const std::vector<Event>& a, const std::vector<Event>& b) {
  const size_t count = std::min(a.size(), b.size());
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin()));
}

void Verify(const Program& program, std::vector<Runner>& runners) {
  const bool ends_early = StopsShort(program.deviation) || program.deviation == Deviation::kLeave;
  for (int a = 0; a < program.size; ++a) {
    Runner& runner = runners[static_cast<size_t>(a)];
    runner.TakeAnswers();
    EXPECT_EQ(runner.error(), "") << "rank " << a;
    for (int b = 0; b < a; ++b) {
      const auto mine = Common(program, runners, a, b);
      const auto theirs = Common(program, runners, b, a);
      if (ends_early) {
        ExpectSameBeginning(mine, theirs);
      } else {
        EXPECT_TRUE(mine == theirs) << "ranks " << a << " and " << b;
      }
    }
    if (ends_early || program.deviation == Deviation::kJoin) continue;
    std::array<int, 8> seen = {};
    for (const Event& event : runner.events()) ++seen[static_cast<size_t>(event.tensor)];
    EXPECT_EQ(seen, runner.Submitted()) << "rank " << a;
  }
}

void RunJob(uint32_t seed, Totals& totals) {
  Program program(seed);
  SimulatedJob job({.size = program.size,
                    .radix = program.radix,
                    .cache_capacity = 16,
                    .freeze_after = kFreezeAfter,
                    .hosts = program.hosts,
                    .seed = seed});
  const std::vector<ProcessSetId> ids = AddSets(program, job);
  std::vector<Runner> runners;
  for (int rank = 0; rank < program.size; ++rank) runners.emplace_back(program, job, rank, ids);
  for (Runner& runner : runners) runner.Begin();
  EXPECT_TRUE(Run(runners, job)) << "hangs";
  Verify(program, runners);
  uint64_t steps = 0;
  uint64_t thaws = 0;
  uint64_t votes = 0;
  for (int rank = 0; rank < program.size; ++rank) {
    votes += job.coordinator(rank).stats().votes_sent;
    steps += job.coordinator(rank).stats().frozen_steps;
    thaws += job.coordinator(rank).stats().thaws;
  }
  for (int rank = 0; rank < program.size && !StopsShort(program.deviation); ++rank) {
    EXPECT_EQ(job.coordinator(rank).stats().thaws, job.coordinator(0).stats().thaws)
        << "rank " << rank << " has not thawed with the others";
  }
  const auto kind = static_cast<size_t>(program.deviation);
  totals.voted_between_hosts += votes > 0 ? 1 : 0;
  ++totals.jobs[kind];
  totals.frozen[kind] += steps > 0 ? 1 : 0;
  totals.thawed[kind] += thaws > 0 ? 1 : 0;
}

class FrozenPropertyTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(FrozenPropertyTest, EveryTensorIsReducedOnceAndAlike) {
  Totals totals;
  for (uint32_t i = 0; i < kSeedsPerShard && !HasFailure(); ++i) {
    const uint32_t seed = GetParam() * kSeedsPerShard + i;
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunJob(seed, totals);
  }
  // Else the test would not be about what it says. A hundred seeds are too few to tell.
  if (kSeedsPerShard > 1000) EXPECT_GT(4 * totals.voted_between_hosts, kSeedsPerShard);
  for (size_t kind = 0; kind < kDeviationCount && kSeedsPerShard > 1000; ++kind) {
    EXPECT_GT(10 * totals.frozen[kind], totals.jobs[kind]) << "deviation " << kind;
    const auto deviation = static_cast<Deviation>(kind);
    // Who loses another rank does not thaw any more.
    if (deviation == Deviation::kNone || StopsShort(deviation)) continue;
    EXPECT_GT(10 * totals.thawed[kind], totals.jobs[kind]) << "deviation " << kind;
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, FrozenPropertyTest, ::testing::Range(0u, kShards));

}  // namespace
}  // namespace mydist
