#include "planner/path_probe.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <vector>

#include "algorithms/rank_ordered_collectives.h"
#include "base/clock.h"

namespace mydist {

namespace {

constexpr int kSmallRounds = 5;
constexpr int kLargeRounds = 2;
constexpr int64_t kLargeCount = kProbeBytes / sizeof(float);
// Faster than any memory: keeps the measured time above zero.
constexpr double kLeastSecondsPerByte = 1e-12;

constexpr Reduction kSum{.dtype = DataType::kFloat32, .op = ReduceOp::kSum};

// The fastest of some rounds after one that only warms up: what disturbs a round has no part in
// what the path costs.
Result<double> FastestSeconds(Collectives& collectives, std::span<float> data, int rounds) {
  std::fill(data.begin(), data.end(), 0.0F);
  double fastest = 0;
  for (int round = 0; round <= rounds; ++round) {
    const TimePoint start = Now();
    MYDIST_RETURN_IF_ERROR(collectives.Allreduce(data.data(), std::ssize(data), kSum));
    const double seconds = ToSeconds(Now() - start);
    if (round == 1 || (round > 1 && seconds < fastest)) fastest = seconds;
  }
  return fastest;
}

}  // namespace

Result<PathCosts> MeasurePath(const ProbedPath& path) {
  std::vector<float> own(path.memory == nullptr ? kLargeCount : 2);
  const std::span<float> few(own.data(), 2);
  const std::span<float> many(path.memory == nullptr ? own.data() : path.memory, kLargeCount);
  MYDIST_ASSIGN_OR_RETURN(const double small, FastestSeconds(*path.small, few, kSmallRounds));
  double round_trip = small;
  if (path.transport != nullptr) {
    RankOrderedCollectives messages(path.transport);
    MYDIST_ASSIGN_OR_RETURN(round_trip, FastestSeconds(messages, few, kSmallRounds));
  }
  MYDIST_ASSIGN_OR_RETURN(const double large, FastestSeconds(*path.large, many, kLargeRounds));
  const double per_byte = (large - small) / static_cast<double>(kLargeCount * sizeof(float));
  std::array<double, 2> slowest = {small + round_trip + ToSeconds(kWakeUps),
                                   std::max(per_byte, kLeastSecondsPerByte)};
  const Reduction max{.dtype = DataType::kFloat64, .op = ReduceOp::kMax};
  MYDIST_RETURN_IF_ERROR(path.small->Allreduce(slowest.data(), slowest.size(), max));
  return PathCosts{.latency = std::chrono::duration<double>(slowest[0]),
                   .seconds_per_byte = slowest[1]};
}

}  // namespace mydist
