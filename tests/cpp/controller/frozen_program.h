// FrozenProgram: what the ranks of a random job call, drawn from a seed. Every step is alike, so
// that the schedule freezes, but for one deviation, of all ranks at once, of some or of a single
// one. Its invariant: a correct job never hangs in it; who submits something later than the others
// waits for nothing that they only submit when they have it. Of the test that runs it.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "controller/messages/request.h"

namespace mydist {

enum class Deviation {
  kNone,
  kNewTensor,      // For one step. Who does not deviate submits it a step later.
  kMissingTensor,  // In one step. Unless all miss it, who does submits it a step later.
  kOtherShape,     // From one step on. Unless all do so, an error for all.
  kOtherOp,        // In one step. Unless all do so, an error for all.
  kMismatch,       // Not all ask for the same: an error for all.
  kOtherOrder,     // Some turn a step round.
  kWaitsInOrder,   // They also wait for each tensor, which the others do not.
  kStall,          // Some do nothing for a while.
  kTimeline,       // One rank starts it.
  kNewSet,         // The ranks add a process set. Who does not deviate does so a step later.
  kJoin,           // Some run out of data early.
  kLeave,          // Some leave early.
  kCrash,
  kFail,          // The engine of one rank stops with an error, at any time; its process lives on.
  kFailSilently,  // The same, and the stream does not tell.
};
inline constexpr int kDeviationCount = 16;

// Whether a rank stops without waiting for the others.
inline bool StopsShort(Deviation deviation) {
  return deviation == Deviation::kCrash || deviation == Deviation::kFail ||
         deviation == Deviation::kFailSilently;
}

// What one rank does, whatever the others do.
inline bool IsOfOne(Deviation deviation) {
  return StopsShort(deviation) || deviation == Deviation::kTimeline;
}

// Tensors are numbers: t0 to t5, one that only deviating ranks know, and a new process set.
inline constexpr int kExtra = 6;
inline constexpr int kAddSet = 7;
inline constexpr int kNameCount = 8;
inline constexpr std::array<const char*, kNameCount> kNames = {"t0", "t1", "t2",    "t3",
                                                               "t4", "t5", "extra", "set"};
// Also of a call without a name: "t3.noname.7" is the seventh of t3 on its rank.
int TensorNamed(const std::string& name);

// How a rank waits.
enum class Style { kEach, kStep, kNotBeforeTheEnd };

struct Call {
  int tensor = 0;
  Request request;
  bool waits = false;  // For all that it has in flight, afterwards.
};

struct FrozenProgram {
  explicit FrozenProgram(uint32_t seed);

  bool Has(int tensor, int rank) const;
  bool Deviates(int rank) const { return deviates[static_cast<size_t>(rank)]; }
  bool DeviatesAlone() const { return std::count(deviates.begin(), deviates.end(), true) == 1; }
  // Whether all members of its set that come to the n-th submission of this tensor ask for the
  // same.
  bool Agrees(int tensor, int n) const;
  bool HasCallsWithoutName() const;

  std::mt19937 random;
  Deviation deviation;
  int size;
  int radix;
  std::vector<int> hosts;  // Of each rank; empty: all on one.
  int steps;
  int deviating_step;
  int deviating_tensor;
  std::vector<bool> deviates;          // By rank; a single one for what only one can do.
  int deviating_rank;                  // The first that does.
  std::vector<std::vector<int>> sets;  // By number; 0 is the job.
  std::array<int, kNameCount> set_of = {};
  std::array<bool, kNameCount> is_unnamed = {};  // A call of it does not wait for the one before.
  std::vector<int> order;                        // Tensors of a step.
  std::vector<std::vector<Call>> calls;          // By rank.
  std::vector<size_t> stall_at;                  // By rank: before this call; or never.

 private:
  int Draw(int count) { return static_cast<int>(random() % static_cast<uint32_t>(count)); }
  bool DoAllDeviate() const;
  // Whether the others are to submit later what some submit in the step that deviates.
  bool IsCaughtUp() const;
  void DrawRanks();
  void DrawDeviants();
  void DrawSets();
  void DrawTensors();
  Request At(int tensor, int rank, int step) const;
  std::vector<int> TensorsOf(int rank, int step) const;
  void AddStep(int rank, int step, Style style);
};

}  // namespace mydist
