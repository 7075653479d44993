// A hundred thousand jobs, ten thousand in an ordinary run, that freeze their schedule and deviate
// from it, each with the real coordinators, on one host or several, an order of events of its own
// and one deviation: whatever happens, every tensor is reduced exactly once, in one batch and one
// order on all its ranks, and nothing hangs.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <set>

#include "conformance/deep.h"
#include "conformance/sanitizers.h"
#include "controller/frozen_program.h"
#include "controller/messages/response.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;

#ifdef NDEBUG
constexpr bool kIsDebugged = false;
#else
constexpr bool kIsDebugged = true;
#endif
constexpr uint32_t kSeedsPerShard = kIsSanitized || kIsDebugged ? 100 : 5000;
constexpr uint32_t kShards = 20;
constexpr int kFreezeAfter = 2;
// What goes wrong on a rank that fails.
constexpr const char* kDisk = "a disk";
constexpr const char* kCable = "a cable";

// What a rank saw of a tensor.
struct Event {
  int set = 0;
  int tensor = 0;
  std::string name;  // With the number of a call that has no name of its own.
  int place = 0;     // Among those of its set in the batch.
  bool is_ready = false;

  bool operator==(const Event&) const = default;
};

// One rank that runs the program.
class Runner {
 public:
  Runner(const FrozenProgram& program, SimulatedJob& job, int rank, std::vector<ProcessSetId> ids)
      : program_(program), job_(job), rank_(rank), ids_(std::move(ids)) {}

  void Begin() { next_batch_ = job_.batches(rank_).size(); }

  // Does one thing, if it can.
  void Act() {
    TakeAnswers();
    const std::vector<Call>& calls = program_.calls[static_cast<size_t>(rank_)];
    if (job_.HasCrashed(rank_) || has_left_) return;
    if (IsStopDue()) return Stop();
    const bool must_wait = waits_for_all_
                               ? !in_flight_.empty()
                               : next_ < calls.size() && in_flight_.contains(NameOf(calls[next_]));
    const bool is_over = next_ == calls.size();
    const bool waits = must_wait || (is_over && !in_flight_.empty());
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
  // With all results, whatever became of the others afterwards.
  bool IsComplete() const {
    return next_ == program_.calls[static_cast<size_t>(rank_)].size() && in_flight_.empty() &&
           !somebody_left_;
  }
  // What its callers were told that are left without a result.
  std::string WhyItEnded() const {
    if (!somebody_left_) return job_.outcome(rank_).ToString();
    return "rank " + std::to_string(first_departure_.rank) + ": " +
           first_departure_.status.ToString();
  }
  std::array<int, kNameCount> Submitted() const { return submitted_; }
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
  static const std::string& NameOf(const Call& call) { return call.request.name; }
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
    job_.Fail(rank_, is_silent ? Status::PeerLost(kCable) : Status::Internal(kDisk));
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
    if (program_.deviation == Deviation::kTimeline && rank_ == program_.deviating_rank &&
        next_ == program_.calls[static_cast<size_t>(rank_)].size() / 2) {
      job_.coordinator(rank_).RequestTimeline({.start = true});
    }
    Check(job_.coordinator(rank_).Announce({std::move(request)}, job_.now));
    job_.MarkDue(rank_);
    waits_for_all_ = call.waits;
    in_flight_.insert(NameOf(call));
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
        if (!std::exchange(somebody_left_, true)) first_departure_ = response;
        in_flight_.clear();
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
    const int tensor = TensorNamed(name);
    const int set = program_.set_of[static_cast<size_t>(tensor)];
    events_.push_back({set, tensor, name, places[static_cast<size_t>(set)]++, is_ready});
    // Who has joined takes part in what it has not submitted.
    const bool is_own = in_flight_.erase(name) > 0;
    if (!is_own && !has_left_ && error_.empty()) error_ = "answered though not submitted: " + name;
  }

  const FrozenProgram& program_;
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
  Response first_departure_;
  TimePoint stall_end_ = kNever;
  std::set<std::string> in_flight_;  // Names.
  std::array<int, kNameCount> submitted_ = {};
  std::vector<Event> events_;
  std::string error_;
};

std::vector<ProcessSetId> AddSets(const FrozenProgram& program, SimulatedJob& job) {
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

std::vector<Event> Common(const FrozenProgram& program, const std::vector<Runner>& runners, int a,
                          int b) {
  std::vector<Event> common;
  for (const Event& event : runners[static_cast<size_t>(a)].events()) {
    if (event.tensor == kAddSet || (program.Has(event.tensor, a) && program.Has(event.tensor, b))) {
      common.push_back(event);
    }
  }
  return common;
}

// By deviation, those of a single rank behind all others.
struct Totals {
  std::array<uint64_t, size_t{2}* kDeviationCount> jobs = {};
  std::array<uint64_t, size_t{2}* kDeviationCount> frozen = {};  // Jobs that had frozen steps.
  std::array<uint64_t, size_t{2}* kDeviationCount> thawed = {};
  uint64_t voted_between_hosts = 0;   // Jobs.
  uint64_t frozen_without_names = 0;  // Jobs that had frozen steps with calls without a name.
};

// A rank that died or left knows only how it began.
void ExpectSameBeginning(const std::vector<Event>& a, const std::vector<Event>& b) {
  const size_t count = std::min(a.size(), b.size());
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin()));
}

bool NamesOneThatStopped(const std::string& text, int survivor, const SimulatedJob& job) {
  for (int rank = 0; rank < job.size(); ++rank) {
    const bool is_named = text.find("rank " + std::to_string(rank)) != std::string::npos;
    if (rank != survivor && job.HasCrashed(rank) && is_named) return true;
  }
  return false;
}

// Who has not all its results knows which rank died; or what went wrong first where it went wrong,
// and a rank that stopped for it: who lost that one may itself have been lost first.
void ExpectErrorsOfSurvivors(const FrozenProgram& program, const std::vector<Runner>& runners,
                             const SimulatedJob& job) {
  const std::string lost = "rank " + std::to_string(program.deviating_rank);
  const bool is_silent = program.deviation == Deviation::kFailSilently;
  for (int rank = 0; rank < program.size; ++rank) {
    const Runner& runner = runners[static_cast<size_t>(rank)];
    if (rank == program.deviating_rank || runner.IsComplete()) continue;
    const std::string why = runner.WhyItEnded();
    if (program.deviation == Deviation::kCrash) {
      EXPECT_THAT(why, HasSubstr(lost)) << "rank " << rank;
    } else {
      EXPECT_THAT(why, HasSubstr(is_silent ? kCable : kDisk)) << "rank " << rank;
      EXPECT_TRUE(NamesOneThatStopped(why, rank, job)) << "rank " << rank << ": " << why;
    }
  }
}

// What all members ask for alike is reduced, anything else an error.
void ExpectErrorsOfMismatches(const FrozenProgram& program, const Runner& runner) {
  std::array<int, kNameCount> seen = {};
  for (const Event& event : runner.events()) {
    const int place = seen[static_cast<size_t>(event.tensor)]++;
    const auto number = CallNumber(MakeRequest(event.name));
    const int n = number ? static_cast<int>(*number) - 1 : place;
    EXPECT_EQ(event.is_ready, program.Agrees(event.tensor, n))
        << kNames[static_cast<size_t>(event.tensor)] << ", submission " << n;
  }
}

void Verify(const FrozenProgram& program, std::vector<Runner>& runners, const SimulatedJob& job) {
  const bool ends_early = StopsShort(program.deviation) || program.deviation == Deviation::kLeave;
  if (StopsShort(program.deviation)) ExpectErrorsOfSurvivors(program, runners, job);
  for (int a = 0; a < program.size; ++a) {
    Runner& runner = runners[static_cast<size_t>(a)];
    runner.TakeAnswers();
    EXPECT_EQ(runner.error(), "") << "rank " << a;
    ExpectErrorsOfMismatches(program, runner);
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
    std::array<int, kNameCount> seen = {};
    for (const Event& event : runner.events()) ++seen[static_cast<size_t>(event.tensor)];
    EXPECT_EQ(seen, runner.Submitted()) << "rank " << a;
  }
}

void RunJob(uint32_t seed, Totals& totals) {
  const FrozenProgram program(seed);
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
  Verify(program, runners, job);
  uint64_t steps = 0;
  uint64_t thaws = 0;
  uint64_t votes = 0;
  for (int rank = 0; rank < program.size; ++rank) {
    votes += job.coordinator(rank).stats().host_votes_sent;
    steps += job.coordinator(rank).stats().frozen_steps;
    thaws += job.coordinator(rank).stats().thaws;
  }
  for (int rank = 0; rank < program.size && !StopsShort(program.deviation); ++rank) {
    EXPECT_EQ(job.coordinator(rank).stats().thaws, job.coordinator(0).stats().thaws)
        << "rank " << rank << " has not thawed with the others";
  }
  const size_t kind =
      static_cast<size_t>(program.deviation) + (program.DeviatesAlone() ? kDeviationCount : 0);
  totals.voted_between_hosts += votes > 0 ? 1 : 0;
  totals.frozen_without_names += steps > 0 && program.HasCallsWithoutName() ? 1 : 0;
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
  if (kSeedsPerShard > 1000) EXPECT_GT(4 * totals.frozen_without_names, kSeedsPerShard);
  for (size_t kind = 0; kind < totals.jobs.size() && kSeedsPerShard > 1000; ++kind) {
    const auto deviation = static_cast<Deviation>(kind % kDeviationCount);
    if (kind < kDeviationCount && IsOfOne(deviation)) continue;
    EXPECT_GT(10 * totals.frozen[kind], totals.jobs[kind]) << "deviation " << kind;
    // Who loses another rank does not thaw any more.
    if (deviation == Deviation::kNone || StopsShort(deviation)) continue;
    EXPECT_GT(10 * totals.thawed[kind], totals.jobs[kind]) << "deviation " << kind;
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, FrozenPropertyTest,
                         ::testing::Range(0u, InDeep(kShards, kShards / 10)));

}  // namespace
}  // namespace mydist
