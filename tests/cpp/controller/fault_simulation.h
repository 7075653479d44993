// FaultSimulation: a job of a FaultProgram, each rank with its real Coordinator and StallGuard,
// over a FaultNetwork, with the program's faults. One thread and a virtual clock: a seed is one
// run. docs/decisions/0023-simulated-faults.md says what it promises.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "controller/fault_invariants.h"
#include "controller/fault_network.h"
#include "controller/fault_program.h"

namespace mydist {

class FaultRank;

struct FaultTotals {
  uint64_t jobs = 0;
  uint64_t steps = 0;
  uint64_t faulty = 0;       // Jobs in which a fault that is not harmless happened.
  uint64_t frozen = 0;       // Jobs with frozen steps.
  uint64_t with_errors = 0;  // Jobs in which a rank that lived on had an error.
  uint64_t breached = 0;     // Jobs in which the network broke its promise.
  uint64_t refused = 0;      // Of those, jobs in which a rank noticed it.
};

class FaultSimulation {
 public:
  FaultSimulation(const FaultProgram& program, uint32_t seed, Sabotage sabotage = Sabotage::kNone);
  ~FaultSimulation();

  // To the end, or to the first violation, which it returns; "": all is well.
  std::string Run(FaultTotals* totals = nullptr);
  // Before Run: keeps what happens, for trace().
  void KeepTrace();
  const std::vector<std::string>& trace() const { return trace_; }

 private:
  bool IsOver(int rank) const;
  void MarkDue(int rank);
  void Step();
  void ApplyFaults();
  bool Apply(const Fault& fault);
  void Disturb(Duration duration, bool is_prompt);
  bool PassTime();
  void CheckStep(FaultRank& rank);
  void CheckWaits();
  void CheckQuiet();
  void CheckEnd();
  void Count(FaultTotals& totals);
  void Trace(int rank, const std::string& what);
  std::string State() const;

  const FaultProgram& program_;
  std::vector<bool> is_due_;  // By rank: listed in due_.
  std::vector<int> due_;
  FaultNetwork network_;
  FaultInvariants invariants_;
  std::vector<std::unique_ptr<FaultRank>> ranks_;
  std::vector<Fault> faults_;  // Still to come.
  uint32_t step_ = 0;
  int standstills_ = 0;
  bool is_faulty_ = false;
  bool is_breached_ = false;
  bool is_prompt_ = true;  // The others hear at once of all faults so far.
  bool may_depart_;
  TimePoint disturbed_until_;
  bool keeps_trace_ = false;
  std::vector<std::string> trace_;
};

}  // namespace mydist
