// Whatever the order in which tensors become ready and messages arrive, every rank gets the same
// batches and the same plan, and every tensor has the outcome it must have.
#include <gtest/gtest.h>

#include <set>

#include "controller/fusion_planner.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

constexpr int kTensorCount = 12;
constexpr int kStepCount = 6;

// What makes the cache work: shapes change, first dimensions change, ranks disagree.
struct Workload {
  uint32_t seed = 0;
  bool with_changes = true;
  bool with_mismatches = true;

  uint32_t Draw(int step, int tensor, int salt) const {
    std::seed_seq sequence{static_cast<int>(seed), step, tensor, salt};
    std::mt19937 random(sequence);
    return random();
  }
  // The rank that requests something else, or -1.
  int Deviant(int step, int tensor, int size) const {
    const bool deviates = with_mismatches && size > 1 && Draw(step, tensor, 1) % 8 == 0;
    return deviates ? static_cast<int>(Draw(step, tensor, 2) % static_cast<uint32_t>(size)) : -1;
  }
  bool IsGrouped(int tensor) const { return tensor >= 9; }  // 9, 10 and 11 form a group.

  Request At(int step, int tensor, int rank, int size) const {
    Request request = MakeRequest("t" + std::to_string(tensor), {3, 2});
    if (with_changes && Draw(step, tensor, 3) % 4 == 0) request.shape = Shape({5, step + 1});
    if (tensor % 4 == 1) {
      request.op = OpKind::kAllgather;
      const int change = with_changes && Draw(step, tensor, 4) % 3 == 0 ? step : 0;
      request.shape = request.shape.WithFirstDim(rank + change);
    }
    if (tensor % 4 == 2) {
      request.op = OpKind::kAlltoall;
      request.shape = request.shape.WithFirstDim(static_cast<int64_t>(Draw(step, tensor, rank)));
    }
    if (IsGrouped(tensor)) {
      request.group = "g";
      request.group_size = 3;
    }
    if (Deviant(step, tensor, size) == rank) request.dtype = DataType::kFloat64;
    return request;
  }
  bool Fails(int step, int tensor, int size) const {
    if (!IsGrouped(tensor)) return Deviant(step, tensor, size) >= 0;
    for (int member = 9; member < kTensorCount; ++member) {
      if (Deviant(step, member, size) >= 0) return true;
    }
    return false;
  }
};

// One rank's program: its tensors of each step in its own order; the next round of a tensor begins
// whenever the last one is answered.
class Program {
 public:
  Program(const Workload& workload, SimulatedJob& job, int rank)
      : workload_(workload), job_(job), rank_(rank), next_step_(kTensorCount) {}

  bool IsDone() const {
    for (const int step : next_step_) {
      if (step < kStepCount) return false;
    }
    return true;
  }

  // Announces one tensor (or the group) that is not in flight, drawn at random.
  void AnnounceSomething() {
    TakeAnswers();
    std::vector<int> choices;
    for (int tensor = 0; tensor <= 9; ++tensor) {
      const bool free =
          workload_.IsGrouped(tensor) ? !IsBusy(9) && !IsBusy(10) && !IsBusy(11) : !IsBusy(tensor);
      if (free && next_step_[static_cast<size_t>(tensor)] < kStepCount) choices.push_back(tensor);
    }
    if (choices.empty()) return;
    const int tensor = choices[job_.random()() % choices.size()];
    std::vector<Request> requests;
    for (int member = tensor; member <= (tensor == 9 ? 11 : tensor); ++member) {
      const int step = next_step_[static_cast<size_t>(member)]++;
      requests.push_back(workload_.At(step, member, rank_, job_.size()));
      busy_.insert(requests.back().name);
    }
    job_.Announce(rank_, std::move(requests));
  }

 private:
  bool IsBusy(int tensor) const { return busy_.contains("t" + std::to_string(tensor)); }

  void TakeAnswers() {
    const auto& batches = job_.batches(rank_);
    for (; seen_ < batches.size(); ++seen_) {
      for (const Response& response : batches[seen_]) {
        const bool ready = response.kind == ResponseKind::kReady;
        busy_.erase(ready ? response.agreement->request.name : response.name);
      }
    }
  }

  const Workload& workload_;
  SimulatedJob& job_;
  int rank_;
  std::vector<int> next_step_;  // By tensor.
  std::set<std::string> busy_;
  size_t seen_ = 0;
};

void RunPrograms(const Workload& workload, SimulatedJob& job) {
  std::vector<Program> programs;
  for (int rank = 0; rank < job.size(); ++rank) programs.emplace_back(workload, job, rank);
  bool done = false;
  while (!done && !::testing::Test::HasFailure()) {
    for (int i = 0; i < job.size(); ++i) {
      programs[job.random()() % programs.size()].AnnounceSomething();
      for (uint32_t steps = job.random()() % 8; steps > 0; --steps) job.Progress();
    }
    done = true;
    for (const Program& program : programs) done = done && program.IsDone();
  }
  job.RunUntilQuiet();
}

// Outcomes of one tensor in order: "R" or "E".
std::string Outcomes(const SimulatedJob& job, int rank, int tensor) {
  const std::string name = "t" + std::to_string(tensor);
  std::string outcomes;
  for (const Batch& batch : job.batches(rank)) {
    for (const Response& response : batch) {
      if (response.kind == ResponseKind::kError && response.name == name) outcomes += "E";
      if (response.kind == ResponseKind::kReady && response.agreement->request.name == name) {
        outcomes += "R";
      }
    }
  }
  return outcomes;
}

void ExpectSameEverywhere(const SimulatedJob& job) {
  const auto expected = job.Log(0);
  for (int rank = 1; rank < job.size(); ++rank) ASSERT_EQ(job.Log(rank), expected) << rank;
  for (size_t i = 0; i < job.batches(0).size(); ++i) {
    std::vector<std::vector<std::vector<size_t>>> plans;
    for (int rank = 0; rank < job.size(); ++rank) {
      std::vector<std::shared_ptr<const Agreement>> ready;
      for (const Response& response : job.batches(rank)[i]) {
        if (response.kind == ResponseKind::kReady) ready.push_back(response.agreement);
      }
      plans.push_back(PlanFusion(ready, 100));
      ASSERT_EQ(plans.back(), plans.front());
    }
  }
}

void ExpectOutcomes(const Workload& workload, const SimulatedJob& job) {
  for (int tensor = 0; tensor < kTensorCount; ++tensor) {
    std::string expected;
    for (int step = 0; step < kStepCount; ++step) {
      expected += workload.Fails(step, tensor, job.size()) ? "E" : "R";
    }
    EXPECT_EQ(Outcomes(job, 0, tensor), expected) << "t" << tensor;
  }
}

// Members of a group leave side by side.
void ExpectGroupsAdjacent(const SimulatedJob& job) {
  for (const Batch& batch : job.batches(0)) {
    for (size_t i = 0; i < batch.size(); ++i) {
      if (batch[i].kind != ResponseKind::kReady || batch[i].agreement->request.group.empty()) {
        continue;
      }
      ASSERT_LT(i + 2, batch.size());
      std::set<std::string> names;
      for (size_t k = i; k < i + 3; ++k) {
        ASSERT_EQ(batch[k].kind, ResponseKind::kReady);
        names.insert(batch[k].agreement->request.name);
      }
      EXPECT_EQ(names, (std::set<std::string>{"t9", "t10", "t11"}));
      i += 2;
    }
  }
}

struct Case {
  int size;
  int radix;
  int64_t capacity;
};

class NegotiationPropertyTest : public ::testing::TestWithParam<Case> {};

TEST_P(NegotiationPropertyTest, AnyOrderGivesEveryRankTheSame) {
  const Case param = GetParam();
  const uint32_t seeds = param.size <= 8 ? 40 : 6;
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Workload workload{seed, seed % 4 != 0, seed % 3 != 0};
    SimulatedJob job(
        {.size = param.size, .radix = param.radix, .cache_capacity = param.capacity, .seed = seed});
    RunPrograms(workload, job);
    ExpectSameEverywhere(job);
    ExpectOutcomes(workload, job);
    ExpectGroupsAdjacent(job);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Trees, NegotiationPropertyTest,
                         ::testing::Values(Case{1, 2, 16}, Case{2, 2, 16}, Case{2, 2, 1},
                                           Case{3, 1, 3}, Case{4, 2, 3}, Case{5, 2, 0},
                                           Case{5, 2, 1}, Case{7, 2, 16}, Case{7, 2, 8},
                                           Case{8, 32, 3}, Case{8, 1, 5}, Case{33, 4, 7},
                                           Case{40, 2, 16}, Case{64, 8, 3}),
                         [](const auto& test) {
                           return "size" + std::to_string(test.param.size) + "radix" +
                                  std::to_string(test.param.radix) + "cache" +
                                  std::to_string(test.param.capacity);
                         });

}  // namespace
}  // namespace mydist
