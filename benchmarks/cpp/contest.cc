#include "contest.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace mydist::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLineFloats = 32;  // 128 bytes.
constexpr int kPatternPeriod = 7;
constexpr int64_t kRowFloats = kPatternPeriod * kLineFloats * 4;
constexpr int kWarmUpCount = 2;
// Of a contender that has not settled: no more of them, and no more bytes.
constexpr int64_t kMaxWarmUpCount = 1000;
constexpr int64_t kMaxWarmUpBytes = int64_t{64} << 20;
// Tensors of the calls that are timed together stay in the L2 cache.
constexpr int64_t kTogetherBytes = int64_t{128} << 10;
constexpr int kMaxTogether = 32;
// Per round: samples of small tensors, and bytes in all of large ones.
constexpr int kMaxSamples = 100;
constexpr int kSlowDivisor = 8;
constexpr int64_t kRoundBytes = int64_t{192} << 20;

double ProcessCpuUs() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

double ContextSwitches() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_nvcsw + usage.ru_nivcsw);
}

// Small whole numbers, so that sums are exact; they differ by element, rank, sample and call.
float Offset(int rank, int sample) { return static_cast<float>((rank * 3 + sample) % 5); }

Bytes ToBytes(const std::vector<double>& values) {
  Bytes bytes(values.size() * sizeof(double));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<double> ToDoubles(const Bytes& bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

int CallsTogether(int64_t size_bytes) {
  return static_cast<int>(
      std::clamp(kTogetherBytes / size_bytes, int64_t{1}, static_cast<int64_t>(kMaxTogether)));
}

int64_t StrideFor(int64_t count) { return (count + kLineFloats - 1) / kLineFloats * kLineFloats; }

}  // namespace

int64_t Contest::MemoryBytes(const std::vector<int64_t>& sizes_bytes) {
  int64_t most = 0;
  for (const int64_t size : sizes_bytes) {
    const int64_t stride = StrideFor(std::max(int64_t{1}, size / 4));
    most = std::max(most, CallsTogether(size) * stride * 4);
  }
  return most;
}

Contest::Turn Contest::MakeTurn(Contender* contender, int64_t size_bytes) const {
  const int64_t count = std::max(int64_t{1}, size_bytes / 4);
  Samples samples;
  samples.calls = CallsTogether(size_bytes);
  int64_t samples_count = std::min<int64_t>(kMaxSamples, kRoundBytes / (size_bytes * 4));
  if (contender->IsSlow()) samples_count /= kSlowDivisor;
  samples.count = static_cast<int>(std::max<int64_t>(2, samples_count * plan_.effort / 100));
  return {contender, count, StrideFor(count), samples};
}

Status Contest::Run() {
  for (int round = 0; round < plan_.rounds; ++round) {
    for (const int64_t size : plan_.sizes_bytes) {
      for (size_t i = 0; i < contenders_.size(); ++i) {
        // Another one begins in every round.
        Contender* const contender =
            contenders_[(i + static_cast<size_t>(round)) % contenders_.size()];
        MYDIST_RETURN_IF_ERROR(
            TakeTurn(MakeTurn(contender, size), &outcomes_[{size, contender->name()}]));
      }
    }
  }
  return Status::Ok();
}

Status Contest::TakeTurn(const Turn& turn, Outcome* outcome) {
  const int64_t bytes = turn.samples.calls * turn.count * int64_t{sizeof(float)};
  const int64_t most = std::min(kMaxWarmUpCount, kMaxWarmUpBytes / bytes) * plan_.effort / 100;
  int index = 0;
  while (index < kWarmUpCount || (index < most && !turn.contender->IsSettled())) {
    MYDIST_RETURN_IF_ERROR(TakeSample(turn, index++).status());
  }
  double distance_ns = 0;
  MYDIST_RETURN_IF_ERROR(MeasureDistance(&distance_ns));
  spent_ = {};
  std::vector<double> mine_us;
  for (int i = 0; i < turn.samples.count; ++i) {
    MYDIST_ASSIGN_OR_RETURN(const double elapsed_us, TakeSample(turn, index++));
    mine_us.push_back(elapsed_us / turn.samples.calls);
  }
  spent_.calls = static_cast<int64_t>(turn.samples.calls) * turn.samples.count;
  MYDIST_RETURN_IF_ERROR(MeasureDistance(&distance_ns));
  if (distance_ != nullptr) {
    outcome->distances_ns.insert(outcome->distances_ns.end(), mine_us.size(), distance_ns);
  }
  return Share(mine_us, spent_, outcome);
}

Status Contest::MeasureDistance(double* most_ns) {
  if (distance_ == nullptr) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(const double now_ns, distance_->MeasureNs());
  *most_ns = std::max(*most_ns, now_ns);
  return Status::Ok();
}

Result<double> Contest::TakeSample(const Turn& turn, int index) {
  Fill(turn, index);
  float* const memory = turn.contender->memory();
  MYDIST_RETURN_IF_ERROR(turn.contender->Barrier());
  const double switches = ContextSwitches();
  const double cpu_us = ProcessCpuUs();
  const Clock::time_point started = Clock::now();
  for (int call = 0; call < turn.samples.calls; ++call) {
    MYDIST_RETURN_IF_ERROR(turn.contender->Allreduce(memory + call * turn.stride, turn.count));
  }
  const Clock::time_point ended = Clock::now();
  spent_.cpu_us += ProcessCpuUs() - cpu_us;
  spent_.switches += ContextSwitches() - switches;
  // Who is done first must not check while others, on the same core perhaps, are still timed.
  MYDIST_RETURN_IF_ERROR(turn.contender->AwaitOthers());
  if (turn.contender->name() == plan_.falsified && ranks_->rank() == ranks_->size() - 1) {
    memory[turn.count / 2] += 1.0F;
  }
  MYDIST_RETURN_IF_ERROR(Check(turn, index));
  return std::chrono::duration<double, std::micro>(ended - started).count();
}

void Contest::Fill(const Turn& turn, int index) const {
  float row[kRowFloats];
  const float offset = Offset(ranks_->rank(), index);
  for (int64_t i = 0; i < kRowFloats; ++i) {
    row[i] = static_cast<float>(i % kPatternPeriod) + offset;
  }
  for (int call = 0; call < turn.samples.calls; ++call) {
    float* const tensor = turn.contender->memory() + call * turn.stride;
    for (int64_t i = 0; i < turn.count; i += kRowFloats) {
      const int64_t part = std::min(kRowFloats, turn.count - i);
      std::memcpy(tensor + i, row, static_cast<size_t>(part) * sizeof(float));
    }
  }
}

Status Contest::Check(const Turn& turn, int index) const {
  const float own_offset = Offset(ranks_->rank(), index);
  float sum_of_offsets = 0;
  for (int rank = 0; rank < ranks_->size(); ++rank) sum_of_offsets += Offset(rank, index);
  float row[kRowFloats];
  for (int64_t i = 0; i < kRowFloats; ++i) {
    const auto pattern = static_cast<float>(i % kPatternPeriod);
    row[i] = turn.contender->Expected(
        pattern + own_offset, static_cast<float>(ranks_->size()) * pattern + sum_of_offsets);
  }
  for (int call = 0; call < turn.samples.calls; ++call) {
    const float* const tensor = turn.contender->memory() + call * turn.stride;
    for (int64_t i = 0; i < turn.count; ++i) {
      const float expected = row[i % kRowFloats];
      if (tensor[i] == expected) continue;
      return Status::Internal(turn.contender->name() + " gave a wrong result on rank " +
                              std::to_string(ranks_->rank()) + ": element " + std::to_string(i) +
                              " of " + std::to_string(turn.count) + " is " +
                              std::to_string(tensor[i]) + ", expected " + std::to_string(expected));
    }
  }
  return Status::Ok();
}

Status Contest::Share(const std::vector<double>& mine_us, const Outcome& mine, Outcome* outcome) {
  std::vector<double> numbers = mine_us;
  numbers.insert(numbers.end(), {mine.cpu_us, mine.switches});
  MYDIST_ASSIGN_OR_RETURN(const auto all, ranks_->Exchange(ToBytes(numbers)));
  std::vector<double> slowest_us(mine_us.size(), 0.0);
  for (const Bytes& bytes : all) {
    const std::vector<double> theirs = ToDoubles(bytes);
    for (size_t i = 0; i < slowest_us.size(); ++i) {
      slowest_us[i] = std::max(slowest_us[i], theirs[i]);
    }
    outcome->cpu_us += theirs[slowest_us.size()] / ranks_->size();
    outcome->switches += theirs[slowest_us.size() + 1] / ranks_->size();
  }
  outcome->times_us.insert(outcome->times_us.end(), slowest_us.begin(), slowest_us.end());
  outcome->calls += mine.calls;
  return Status::Ok();
}

}  // namespace mydist::bench
