// Contest: measures contenders in turns, in the same processes on the same cores, and checks every
// result. Owned by main, one per rank; collective. Before every sample each rank rewrites its
// tensors and all meet at the contender's barrier; the slowest rank's time counts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "contender.h"
#include "core_distance.h"

namespace mydist::bench {

struct ContestPlan {
  std::vector<int64_t> sizes_bytes;
  int rounds = 5;
  // Share of the usual number of samples, in percent.
  int effort = 100;
  // A contender whose results are falsified, to show that this is noticed.
  std::string falsified;
};

// Of one contender at one size.
struct Outcome {
  std::vector<double> times_us;  // Per call, of the slowest rank; one per sample.
  // By sample: how far the cores were from each other, before or after its turn; the longer time.
  std::vector<double> distances_ns;
  double cpu_us = 0;    // Mean over ranks, all calls together.
  double switches = 0;  // Context switches, likewise.
  int64_t calls = 0;
};

class Contest {
 public:
  // All outlive this object. `distance` null: it is not measured.
  Contest(Ranks* ranks, std::vector<Contender*> contenders, CoreDistance* distance,
          ContestPlan plan)
      : ranks_(ranks),
        contenders_(std::move(contenders)),
        distance_(distance),
        plan_(std::move(plan)) {}

  // kInternal naming contender, size and element when a result is wrong.
  Status Run();

  const std::map<std::pair<int64_t, std::string>, Outcome>& outcomes() const { return outcomes_; }

  // Bytes that a contender's memory must have.
  static int64_t MemoryBytes(const std::vector<int64_t>& sizes_bytes);

 private:
  struct Turn {
    Contender* contender;
    int64_t count;  // Elements of a tensor.
    int64_t stride;
    Samples samples;
  };

  Turn MakeTurn(Contender* contender, int64_t size_bytes) const;
  Status TakeTurn(const Turn& turn, Outcome* outcome);
  Status MeasureDistance(double* most_ns);
  Result<double> TakeSample(const Turn& turn, int index);
  void Fill(const Turn& turn, int index) const;
  Status Check(const Turn& turn, int index) const;
  Status Share(const std::vector<double>& mine_us, const Outcome& mine, Outcome* outcome);

  Ranks* const ranks_;
  const std::vector<Contender*> contenders_;
  CoreDistance* const distance_;
  const ContestPlan plan_;
  std::map<std::pair<int64_t, std::string>, Outcome> outcomes_;
  Outcome spent_;  // By this rank in the turn.
};

}  // namespace mydist::bench
