// Everything at once: overlapping process sets, groups, ranks that run out of data and join,
// requests that do not fit, caches that are too small, sets that are removed and added again. What
// every rank sees must be what follows from the program alone, whatever the order of events.
#include <gmock/gmock.h>

#include <algorithm>

#include "controller/simulated_job.h"

namespace mydist {
namespace {

constexpr int kRounds = 3;
// Of each set: an allreduce, an allgather, and two allreduces that form a group.
constexpr int kTensorCount = 4;
constexpr int kGroup = 2;  // Its first member.

struct Case {
  int size;
  int radix;
  int64_t capacity;
};

// What the ranks do, as a function of the seed.
class Program {
 public:
  Program(uint32_t seed, int size) : seed_(seed), size_(size) {
    sets_.push_back({});
    for (int rank = 0; rank < size; ++rank) sets_[0].push_back(rank);
    for (int set = 1; set <= 3; ++set) {
      auto& ranks = sets_.emplace_back();
      for (int rank = 0; rank < size; ++rank) {
        if (Draw({set, rank}) % 2 == 0) ranks.push_back(rank);
      }
      if (ranks.empty()) ranks.push_back(set % size);
    }
  }

  const std::vector<std::vector<int32_t>>& sets() const { return sets_; }
  bool IsMember(size_t set, int rank) const {
    return std::count(sets_[set].begin(), sets_[set].end(), rank) > 0;
  }
  // How often a rank submits each of its tensors before it joins.
  int Steps(int round, int rank) const { return static_cast<int>(Draw({round, rank, 7}) % 4); }

  Request At(int round, size_t set, int tensor, int step, int rank) const {
    Request request = MakeRequest("t" + std::to_string(tensor), {5, 2});
    const bool differs = Draw({round, static_cast<int>(set), tensor, step, 11}) % 4 == 0 &&
                         Draw({round, static_cast<int>(set), tensor, step, rank}) % 3 == 0;
    if (differs) request.dtype = DataType::kFloat64;
    if (Draw({round, static_cast<int>(set), tensor, step, 12}) % 3 == 0) {
      request.shape = Shape({5, step + 3});
    }
    if (tensor == 1) {
      request.op = OpKind::kAllgather;
      request.shape = request.shape.WithFirstDim(rank + step + 1);
    }
    if (tensor >= kGroup) {
      request.group = "g";
      request.group_size = kTensorCount - kGroup;
    }
    return request;
  }

  // What the rank sees of a tensor in one round, in order.
  std::string Outcome(int round, size_t set, int tensor, int rank) const {
    std::string outcome;
    for (int step = 0; step < 4; ++step) {
      std::string rows;
      bool is_asked = false;
      for (const int32_t member : sets_[set]) {
        const bool asks = step < Steps(round, member);
        is_asked = is_asked || asks;
        rows += tensor == 1 ? " " + std::to_string(asks ? member + step + 1 : 0) : "";
      }
      if (!is_asked) break;
      bool agreed = AllAgree(round, set, tensor, step);
      // One member of a group fails all.
      for (int other = kGroup; tensor >= kGroup && other < kTensorCount; ++other) {
        agreed = agreed && AllAgree(round, set, other, step);
      }
      if (agreed) outcome += "ready" + rows + "|";
      // Who has joined has nothing that could fail.
      if (!agreed && step < Steps(round, rank)) outcome += "error|";
    }
    return outcome;
  }

 private:
  // Those that ask for it ask for the same.
  bool AllAgree(int round, size_t set, int tensor, int step) const {
    std::vector<Request> asked;
    for (const int32_t member : sets_[set]) {
      if (step < Steps(round, member)) asked.push_back(At(round, set, tensor, step, member));
    }
    return std::all_of(asked.begin(), asked.end(),
                       [&](const Request& request) { return Agree(request, asked.front()); });
  }
  uint32_t Draw(std::initializer_list<int> place) const {
    uint64_t bits = uint64_t{seed_} * 64 + static_cast<uint64_t>(size_);
    for (const int number : place) {
      bits = (bits ^ static_cast<uint64_t>(number + 1)) * 0x9E3779B97F4A7C15;
      bits ^= bits >> 29;
    }
    return static_cast<uint32_t>(bits >> 32);
  }

  uint32_t seed_;
  int size_;
  std::vector<std::vector<int32_t>> sets_;
};

// One rank that runs it.
class Runner {
 public:
  Runner(const Program& program, SimulatedJob& job, int rank)
      : program_(program), job_(job), rank_(rank) {}

  void Begin(const std::vector<ProcessSetId>& ids) {
    ids_ = ids;
    next_step_.assign(ids.size() * kTensorCount, 0);
    busy_.assign(ids.size() * kTensorCount, false);
    seen_.assign(ids.size() * kTensorCount, "");
    has_joined_ = is_back_ = false;
    next_batch_ = job_.batches(rank_).size();
  }

  void Act(int round) {
    TakeAnswers();
    if (has_joined_) return;
    std::vector<size_t> free;
    bool all_announced = true;
    for (size_t i = 0; i < busy_.size(); ++i) {
      if (!program_.IsMember(i / kTensorCount, rank_)) continue;
      if (next_step_[i] == program_.Steps(round, rank_)) continue;
      all_announced = false;
      // The first of a group is announced with the others.
      const size_t tensor = i % kTensorCount;
      if (!busy_[i] && tensor <= kGroup && (tensor < kGroup || !busy_[i + 1])) free.push_back(i);
    }
    if (all_announced) {
      job_.Join(rank_);
      has_joined_ = true;
    } else if (!free.empty()) {
      Announce(round, free[job_.random()() % free.size()]);
    }
  }

  bool IsBack() {
    TakeAnswers();
    return is_back_;
  }
  const std::string& seen(size_t set, int tensor) const {
    return seen_[set * kTensorCount + static_cast<size_t>(tensor)];
  }

 private:
  void Announce(int round, size_t i) {
    const size_t set = i / kTensorCount;
    const int first = static_cast<int>(i % kTensorCount);
    std::vector<Request> requests;
    for (int tensor = first; tensor < (first == kGroup ? kTensorCount : first + 1); ++tensor) {
      const size_t place = set * kTensorCount + static_cast<size_t>(tensor);
      requests.push_back(program_.At(round, set, tensor, next_step_[place]++, rank_));
      requests.back().process_set = ids_[set];
      busy_[place] = true;
    }
    job_.Announce(rank_, std::move(requests));
  }
  void TakeAnswers() {
    const auto& batches = job_.batches(rank_);
    for (; next_batch_ < batches.size(); ++next_batch_) {
      for (const Response& response : batches[next_batch_]) Take(response);
    }
  }
  void Take(const Response& response) {
    if (response.kind == ResponseKind::kAllJoined) is_back_ = true;
    const bool is_ready = response.kind == ResponseKind::kReady;
    if (!is_ready && response.kind != ResponseKind::kError) return;
    const std::string& name = is_ready ? response.agreement->request.name : response.name;
    const auto id = std::find(ids_.begin(), ids_.end(), response.process_set);
    ASSERT_NE(id, ids_.end()) << ResponseText(response);
    const auto set = static_cast<size_t>(id - ids_.begin());
    const size_t i = set * kTensorCount + static_cast<size_t>(name[1] - '0');
    busy_[i] = false;
    seen_[i] += is_ready ? "ready" : "error";
    for (const int64_t rows : is_ready ? response.agreement->first_dims : std::vector<int64_t>()) {
      seen_[i] += " " + std::to_string(rows);
    }
    seen_[i] += "|";
  }

  const Program& program_;
  SimulatedJob& job_;
  int rank_;
  std::vector<ProcessSetId> ids_;
  std::vector<int> next_step_;  // [set][tensor], as those below.
  std::vector<bool> busy_;
  std::vector<std::string> seen_;  // In this round.
  bool has_joined_ = false;
  bool is_back_ = false;
  size_t next_batch_ = 0;
};

std::vector<ProcessSetId> AddSets(const Program& program, SimulatedJob& job) {
  std::vector<ProcessSetId> ids = {kGlobalProcessSet};
  for (size_t set = 1; set < program.sets().size(); ++set) {
    Request add = MakeRequest("add", {0});
    add.op = OpKind::kAddProcessSet;
    add.ranks = program.sets()[set];
    job.AnnounceAll(add);
    job.RunUntilQuiet();
    ids.push_back(job.batches(0).back().back().added_set);
  }
  return ids;
}

// All but the global one, at once; a rank of each has something in flight.
void RemoveSets(const Program& program, SimulatedJob& job, const std::vector<ProcessSetId>& ids) {
  for (size_t set = 1; set < ids.size(); ++set) {
    const std::vector<int32_t>& ranks = program.sets()[set];
    Request late = MakeRequest("late");
    late.process_set = ids[set];
    if (ranks.size() > 1) job.Announce(ranks[job.random()() % ranks.size()], late);
    Request remove = MakeRequest("remove", {0});
    remove.op = OpKind::kRemoveProcessSet;
    remove.process_set = ids[set];
    for (const int32_t rank : ranks) job.Announce(rank, remove);
  }
  std::vector<size_t> before;
  for (int rank = 0; rank < job.size(); ++rank) before.push_back(job.Errors(rank).size());
  size_t failed = 0;
  job.RunUntilQuiet();
  for (int rank = 0; rank < job.size(); ++rank) {
    failed += job.Errors(rank).size() - before[static_cast<size_t>(rank)];
    for (size_t i = before[static_cast<size_t>(rank)]; i < job.Errors(rank).size(); ++i) {
      EXPECT_THAT(job.Errors(rank)[i], ::testing::HasSubstr("was removed while 'late'"));
    }
  }
  size_t expected = 0;
  for (size_t set = 1; set < ids.size(); ++set) expected += program.sets()[set].size() > 1 ? 1 : 0;
  EXPECT_EQ(failed, expected);
}

void RunRound(int round, const Program& program, std::vector<Runner>& runners, SimulatedJob& job) {
  bool done = false;
  for (int turn = 0; !done && !::testing::Test::HasFailure(); ++turn) {
    ASSERT_LT(turn, 10000) << "round " << round << " does not come to an end";
    for (int i = 0; i < job.size(); ++i) {
      runners[job.random()() % runners.size()].Act(round);
      for (uint32_t steps = job.random()() % 8; steps > 0; --steps) job.Progress();
    }
    done = true;
    for (Runner& runner : runners) done = runner.IsBack() && done;
  }
  for (size_t set = 0; set < program.sets().size(); ++set) {
    for (const int32_t rank : program.sets()[set]) {
      for (int tensor = 0; tensor < kTensorCount; ++tensor) {
        EXPECT_EQ(runners[static_cast<size_t>(rank)].seen(set, tensor),
                  program.Outcome(round, set, tensor, rank))
            << "round " << round << ", rank " << rank << ", set " << set << ", t" << tensor;
      }
    }
  }
}

// What is ready in the sets of both, in order: must be the same, or they wait for each other.
std::vector<std::string> Common(const SimulatedJob& job, int rank,
                                const std::vector<ProcessSetId>& sets) {
  std::vector<std::string> common;
  for (const Batch& batch : job.batches(rank)) {
    for (const Response& response : batch) {
      if (response.kind != ResponseKind::kReady) continue;
      if (std::count(sets.begin(), sets.end(), response.process_set) == 0) continue;
      common.push_back(std::to_string(response.process_set) + " " + ResponseText(response));
    }
  }
  return common;
}

class MixedProgramTest : public ::testing::TestWithParam<Case> {};

TEST_P(MixedProgramTest, EveryRankSeesWhatTheProgramSays) {
  const Case param = GetParam();
  const uint32_t seeds = param.size <= 9 ? 40 : 4;
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Program program(seed, param.size);
    SimulatedJob job(
        {.size = param.size, .radix = param.radix, .cache_capacity = param.capacity, .seed = seed});
    std::vector<Runner> runners;
    for (int rank = 0; rank < job.size(); ++rank) runners.emplace_back(program, job, rank);
    std::vector<std::vector<ProcessSetId>> of_rank(runners.size(), {kGlobalProcessSet});
    for (int round = 0; round < kRounds && !HasFailure(); ++round) {
      const std::vector<ProcessSetId> ids = AddSets(program, job);
      for (size_t set = 1; set < ids.size(); ++set) {
        for (const int32_t rank : program.sets()[set]) {
          of_rank[static_cast<size_t>(rank)].push_back(ids[set]);
        }
      }
      for (Runner& runner : runners) runner.Begin(ids);
      RunRound(round, program, runners, job);
      job.RunUntilQuiet();
      RemoveSets(program, job, ids);
    }
    for (int a = 0; a < job.size() && !HasFailure(); ++a) {
      for (int b = 0; b < a; ++b) {
        std::vector<ProcessSetId> both;
        const auto& sets_a = of_rank[static_cast<size_t>(a)];
        const auto& sets_b = of_rank[static_cast<size_t>(b)];
        std::set_intersection(sets_a.begin(), sets_a.end(), sets_b.begin(), sets_b.end(),
                              std::back_inserter(both));
        // Non-members hear of a removal as well, but that is in no set of both.
        EXPECT_EQ(Common(job, a, both), Common(job, b, both)) << "ranks " << a << " and " << b;
      }
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Trees, MixedProgramTest,
                         ::testing::Values(Case{2, 2, 16}, Case{3, 1, 2}, Case{4, 2, 1},
                                           Case{5, 2, 0}, Case{7, 2, 3}, Case{9, 3, 16},
                                           Case{8, 32, 3}, Case{33, 4, 7}),
                         [](const auto& test) {
                           return "size" + std::to_string(test.param.size) + "radix" +
                                  std::to_string(test.param.radix) + "cache" +
                                  std::to_string(test.param.capacity);
                         });

}  // namespace
}  // namespace mydist
