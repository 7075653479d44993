// Ten thousand jobs, a hundred thousand in `make deep`, each with faults drawn from its seed: see
// docs/decisions/0023-simulated-faults.md. One seed again, with all that happens in it:
//   TEST_FAULT_SEED=7 build/dev/tests/test_controller --gtest_filter='FaultSeed.*'
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "base/log.h"
#include "conformance/deep.h"
#include "controller/fault_simulation.h"

namespace mydist {
namespace {

using Faults = FaultProgram::Faults;

#ifdef NDEBUG
constexpr bool kIsPlain = !kIsSanitized;
#else
constexpr bool kIsPlain = false;
#endif
constexpr uint32_t kSeedsPerShard = kIsPlain ? 2500 : 50;
constexpr size_t kShownLines = 40;

Faults KindOf(uint32_t seed) {
  if (seed % 10 == 0) return Faults::kNone;
  return seed % 5 == 1 ? Faults::kBreach : Faults::kOfRanks;
}

// The warnings of thousands of jobs.
class Silence {
 public:
  Silence() : before_(GetLogLevel()) { SetLogLevel(LogLevel::kOff); }
  ~Silence() { SetLogLevel(before_); }

 private:
  const LogLevel before_;
};

std::string RunSeed(uint32_t seed, Sabotage sabotage, FaultTotals* totals) {
  const FaultProgram program(seed, KindOf(seed));
  return FaultSimulation(program, seed, sabotage).Run(totals);
}

// Without the faults that it happens without.
FaultProgram Shrunk(uint32_t seed) {
  FaultProgram program(seed, KindOf(seed));
  for (size_t i = 0; i < program.faults.size();) {
    FaultProgram fewer = program;
    fewer.faults.erase(fewer.faults.begin() + static_cast<std::ptrdiff_t>(i));
    if (FaultSimulation(fewer, seed).Run().empty()) {
      ++i;
    } else {
      program = std::move(fewer);
    }
  }
  return program;
}

// What a reader needs: the faults without which it does not happen, and what came before.
std::string Report(uint32_t seed, size_t lines) {
  const FaultProgram program = Shrunk(seed);
  FaultSimulation simulation(program, seed);
  simulation.KeepTrace();
  const std::string violation = simulation.Run();
  std::string text = "seed " + std::to_string(seed) + ": " + violation + "\n";
  text += std::to_string(program.size) + " ranks, radix " + std::to_string(program.radix) + ", " +
          std::to_string(program.sets.size()) + " process sets, cache " +
          std::to_string(program.cache_capacity) + ", freeze after " +
          std::to_string(program.freeze_after) + ", hosts";
  for (const int host : program.hosts) text += " " + std::to_string(host);
  for (const Fault& fault : program.faults) text += "\n" + FaultText(fault);
  const std::vector<std::string>& trace = simulation.trace();
  const size_t first = trace.size() - std::min(trace.size(), lines);
  text += "\n" + std::to_string(trace.size()) + " events up to here, the last of them:";
  for (size_t i = first; i < trace.size(); ++i) text += "\n  " + trace[i];
  return text + "\nRun it again: TEST_FAULT_SEED=" + std::to_string(seed) +
         " build/dev/tests/test_controller --gtest_filter='FaultSeed.*'";
}

class FaultPropertyTest : public ::testing::TestWithParam<uint32_t> {};

TEST_P(FaultPropertyTest, WhateverFailsNoneIsWrongAndNoneWaitsForEver) {
  const Silence silence;
  FaultTotals totals;
  for (uint32_t i = 0; i < kSeedsPerShard && !HasFailure(); ++i) {
    const uint32_t seed = GetParam() * kSeedsPerShard + i;
    if (RunSeed(seed, Sabotage::kNone, &totals).empty()) continue;
    ADD_FAILURE() << Report(seed, kShownLines);
  }
  // Else the test would not be about what it says.
  if (!kIsPlain || HasFailure()) return;
  EXPECT_GT(5 * totals.faulty, 2 * totals.jobs);
  EXPECT_GT(4 * totals.with_errors, totals.jobs);
  EXPECT_GT(8 * totals.frozen, totals.jobs);
  EXPECT_GT(20 * totals.refused, totals.jobs);
}

INSTANTIATE_TEST_SUITE_P(Shards, FaultPropertyTest, ::testing::Range(0u, InDeep(40u, 4u)));

struct Trick {
  Sabotage sabotage;
  const char* name;
};

// The invariants themselves: what breaks the job is found, and soon.
class FaultSabotageTest : public ::testing::TestWithParam<Trick> {};

TEST_P(FaultSabotageTest, IsNoticedWithinAFewHundredSeeds) {
  const Silence silence;
  uint32_t seed = 0;
  std::string violation;
  while (violation.empty() && seed < 300) {
    violation = RunSeed(seed++, GetParam().sabotage, nullptr);
  }
  EXPECT_NE(violation, "");
  RecordProperty("seed", static_cast<int>(seed) - 1);
}

INSTANTIATE_TEST_SUITE_P(Tricks, FaultSabotageTest,
                         ::testing::Values(Trick{Sabotage::kLoseFarewells, "LoseFarewells"},
                                           Trick{Sabotage::kHideLosses, "HideLosses"},
                                           Trick{Sabotage::kBlameMessenger, "BlameMessenger"},
                                           Trick{Sabotage::kLoseAnswers, "LoseAnswers"},
                                           Trick{Sabotage::kForgeVotes, "ForgeVotes"},
                                           Trick{Sabotage::kForgeReports, "ForgeReports"},
                                           Trick{Sabotage::kSwapItems, "SwapItems"},
                                           Trick{Sabotage::kAnswerTwice, "AnswerTwice"},
                                           Trick{Sabotage::kLoseBatches, "LoseBatches"}),
                         [](const auto& test) { return test.param.name; });

TEST(FaultSeed, RunsAsAsked) {
  const Silence silence;
  const char* const asked = std::getenv("TEST_FAULT_SEED");
  if (asked == nullptr) GTEST_SKIP() << "TEST_FAULT_SEED names no seed";
  const auto seed = static_cast<uint32_t>(std::strtoul(asked, nullptr, 10));
  const std::string report = Report(seed, SIZE_MAX);
  std::cout << report << "\n";
  EXPECT_EQ(RunSeed(seed, Sabotage::kNone, nullptr), "");
}

}  // namespace
}  // namespace mydist
