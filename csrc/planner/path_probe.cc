#include "planner/path_probe.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <vector>

#include "algorithms/rank_ordered_collectives.h"
#include "base/clock.h"
#include "memory/device/ipc_port.h"
#include "planner/device_agreement.h"

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

namespace {

constexpr std::array<int64_t, 4> kSizesBytes = {int64_t{8} << 10, int64_t{64} << 10,
                                                int64_t{512} << 10, kIpcHalfBytes};
constexpr size_t kRounds = 5;

// The median of some rounds after one that only warms up.
Result<double> MedianSeconds(Collectives& collectives, const IpcRivals& rivals, int64_t bytes) {
  const StreamSeat& seat = rivals.seat;
  std::array<double, kRounds> seconds{};
  const int64_t count = bytes / SizeOf(DataType::kFloat32);
  for (size_t round = 0; round <= kRounds; ++round) {
    const TimePoint start = Now();
    MYDIST_RETURN_IF_ERROR(
        collectives.Allreduce(rivals.memory, count, {.dtype = DataType::kFloat32}));
    MYDIST_ASSIGN_OR_RETURN(const EventPointer end, seat.device->Record(seat.stream));
    MYDIST_RETURN_IF_ERROR(WaitWatched(*seat.device, *end, seat.watch));
    if (round > 0) seconds[round - 1] = ToSeconds(Now() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
}

// Garbage may hold denormals, which take longer to add, or numbers that grow from sum to sum. As
// integers, since a NaN times 0 is none.
Status Clear(const IpcRivals& rivals) {
  const ConvertSegment all{rivals.memory, rivals.memory, kIpcHalfBytes / SizeOf(DataType::kInt32)};
  const Conversion to_zero{
      .from = DataType::kInt32, .to = DataType::kInt32, .factor = {.multiplier = 0}};
  return rivals.seat.device->Convert({&all, 1}, to_zero, rivals.seat.stream);
}

}  // namespace

Result<int64_t> MeasureIpcLimit(const IpcRivals& rivals) {
  MYDIST_RETURN_IF_ERROR(Clear(rivals));
  std::array<IpcTimes, kSizesBytes.size()> own{};
  for (size_t i = 0; i < own.size(); ++i) {
    const int64_t bytes = kSizesBytes[i];
    MYDIST_ASSIGN_OR_RETURN(own[i].over_ipc, MedianSeconds(*rivals.over_ipc, rivals, bytes));
    MYDIST_ASSIGN_OR_RETURN(own[i].otherwise, MedianSeconds(*rivals.otherwise, rivals, bytes));
  }
  std::vector<IpcTimes> all(own.size() * static_cast<size_t>(rivals.size));
  const std::vector<int64_t> byte_counts(static_cast<size_t>(rivals.size), sizeof(own));
  MYDIST_RETURN_IF_ERROR(rivals.exchange->Allgather(own.data(), all.data(), byte_counts));
  const size_t faster = CountFaster(all, own.size());
  return faster == 0 ? 0 : kSizesBytes[faster - 1];
}

}  // namespace mydist
