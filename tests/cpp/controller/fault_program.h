// FaultProgram: what the ranks of a random job call, and what goes wrong meanwhile, drawn from a
// seed. Pure data. Used by the fault simulation: docs/decisions/0023-simulated-faults.md.
// Invariant: without a fault that ends a rank, every call of the program is answered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "controller/messages/request.h"

namespace mydist {

enum class FaultKind {
  // Harmless: every call is answered all the same.
  kDelay,  // What `rank` sends to `peer` stays under way for `duration`.
  kPause,  // The rank does nothing for `duration`, less than any limit.
  // The others learn of these at once.
  kCrash,  // The rank dies after `sends` more messages or votes.
  kFail,   // Its engine stops with an error. `is_loud`: the stream tells of it.
  kLeave,  // It leaves in order though the others go on. `is_loud`: with `shutdown`.
  kCut,    // The connection to `peer` breaks. `is_loud`: both ends notice it at once.
  // The others learn of it when their patience ends.
  kSilence,  // The rank does nothing for `duration`, which may be for ever.
  // Breaches of the promise of the control plane, on the way from `rank` to `peer`.
  kRepeat,  // A message arrives twice.
  kSwap,    // Two messages change places.
  kDrop,    // A message is lost, and the connection lives on.
};

struct Fault {
  FaultKind kind = FaultKind::kDelay;
  int rank = 0;
  int peer = 0;
  uint32_t at = 0;  // Number of the step of the simulation.
  int sends = 0;
  bool is_loud = false;
  Duration duration = Duration::zero();  // Duration::max(): for ever.
};

std::string FaultText(const Fault& fault);
inline bool IsHarmless(FaultKind kind) { return kind <= FaultKind::kPause; }
inline bool IsBreach(FaultKind kind) { return kind >= FaultKind::kRepeat; }

// Tensors that a job has, by number: of the program's steps first.
struct FaultTensor {
  std::string name;
  int set = 0;
  OpKind op = OpKind::kAllreduce;
  bool is_grouped = false;     // It and the next one are a group, in one call.
  std::vector<int32_t> ranks;  // Of a send/recv.
};

enum class FaultCallKind { kTensor, kTimeline, kJoin };

struct FaultCall {
  FaultCallKind kind = FaultCallKind::kTensor;
  int tensor = 0;
  int turn = 0;        // Counts steps; equal on all ranks for what belongs together.
  bool waits = false;  // For all that is in flight, afterwards.
};

struct FaultProgram {
  enum class Faults { kNone, kOfRanks, kBreach };
  FaultProgram(uint32_t seed, Faults kind);

  int size = 2;
  int radix = 1;
  int64_t cache_capacity = 0;
  int64_t freeze_after = 0;
  std::vector<int> hosts;              // Of each rank; empty: all on one.
  std::vector<std::vector<int>> sets;  // 0 is the job.
  std::vector<FaultTensor> tensors;    // The last ones: one per further set that adds it; the end.
  std::vector<std::vector<FaultCall>> calls;  // By rank.
  std::vector<Fault> faults;

  int AddOf(int set) const { return step_tensors + set - 1; }
  int end() const { return static_cast<int>(tensors.size()) - 1; }
  bool IsMember(int tensor, int rank) const;
  std::vector<int> MembersOf(int tensor) const;
  std::vector<std::string> HostNames() const;  // Of each rank.
  // Without the number of the process set.
  Request At(int tensor, int turn, int rank) const;
  // Whether all that come to this turn of the tensor, and of those of its group, ask for the same.
  bool Agrees(int tensor, int turn) const;

  int step_tensors = 0;

 private:
  uint32_t Hash(std::initializer_list<int> place) const;
  int Draw(int count) {
    return static_cast<int>(Hash({-1, ++draws_}) % static_cast<uint32_t>(count));
  }
  bool AgreesAlone(int tensor, int turn) const;
  bool Comes(int tensor, int turn, int rank) const;
  void DrawJob();
  void DrawTensors();
  void DrawCalls();
  void DrawFaults(Faults kind);
  Fault DrawFault(bool is_harmless);
  void AddStep(int rank, int turn, int style);

  uint32_t seed_;
  int draws_ = 0;
  bool has_mismatches_ = false;
  bool has_timeline_ = false;
  bool shuffles_ = false;
  std::vector<int> phase_ends_;          // Turns.
  std::vector<std::vector<int>> steps_;  // By phase and rank.
};

}  // namespace mydist
