// bench_allreduce: allreduce of float32 tensors as the core does it, alone and through the engine,
// next to Open MPI, Gloo and the memory's own speed, in one run on the same pinned cores. Prints
// JSON rows as mydist.bench does.
//   bench_allreduce --ranks 2 --sizes 8,65536,4194304
//   mpirun -np 2 --bind-to none bench_allreduce --sizes …      (with Open MPI)
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "contest.h"

namespace mydist::bench {
namespace {

constexpr const char* kUsage =
    "usage: bench_allreduce [--ranks N] [--sizes BYTES,...] [--rounds N] [--effort PERCENT]\n"
    "                       [--falsify NAME]\n";

struct Options {
  int ranks = 2;
  ContestPlan plan{.sizes_bytes = {8, 64 << 10, 4 << 20, 64 << 20}};
};

bool ParseInt(const std::string& text, int64_t most, int64_t* value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end && *value >= 1 && *value <= most;
}

bool ParseSizes(const std::string& text, std::vector<int64_t>* sizes_bytes) {
  sizes_bytes->clear();
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int64_t size = 0;
    if (!ParseInt(part, int64_t{1} << 32, &size)) return false;
    sizes_bytes->push_back(size);
  }
  return !sizes_bytes->empty();
}

bool ParseOption(const std::string& name, const std::string& value, Options* options) {
  if (name == "--falsify") {
    options->plan.falsified = value;
    return true;
  }
  if (name == "--sizes") return ParseSizes(value, &options->plan.sizes_bytes);
  int64_t number = 0;
  if (!ParseInt(value, 1000, &number)) return false;
  const int small = static_cast<int>(number);
  if (name == "--ranks") {
    options->ranks = small;
  } else if (name == "--rounds") {
    options->plan.rounds = small;
  } else if (name == "--effort") {
    options->plan.effort = small;
  } else {
    return false;
  }
  return true;
}

bool ParseOptions(int argc, char** argv, Options* options) {
  if (argc % 2 == 0) return false;
  for (int i = 1; i < argc; i += 2) {
    if (!ParseOption(argv[i], argv[i + 1], options)) return false;
  }
  return true;
}

double Quantile(const std::vector<double>& sorted, double fraction) {
  return sorted[static_cast<size_t>(fraction * static_cast<double>(sorted.size() - 1) + 0.5)];
}

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return Quantile(times, 0.5);
}

// The samples taken while a line took less than that from core to core, and the others.
constexpr double kNearNs = 100;

void PrintDistances(const Outcome& outcome) {
  std::vector<double> near_us;
  std::vector<double> far_us;
  for (size_t i = 0; i < outcome.distances_ns.size(); ++i) {
    (outcome.distances_ns[i] < kNearNs ? near_us : far_us).push_back(outcome.times_us[i]);
  }
  std::printf(", \"cores\": {\"line_ns\": %.6g", Median(outcome.distances_ns));
  std::printf(", \"near_samples\": %zu, \"far_samples\": %zu", near_us.size(), far_us.size());
  if (!near_us.empty()) std::printf(", \"near_us\": %.6g", Median(near_us));
  if (!far_us.empty()) std::printf(", \"far_us\": %.6g", Median(far_us));
  std::printf("}");
}

struct RowContext {
  int ranks;
  int64_t size_bytes;
  double bound_us;
};

// Field names and meanings are those of python/mydist/bench/results.py, "cores" apart.
void PrintRow(const RowContext& context, const std::string& name, const Outcome& outcome) {
  std::vector<double> times = outcome.times_us;
  std::sort(times.begin(), times.end());
  const double median_us = Quantile(times, 0.5);
  const double bytes = static_cast<double>(context.size_bytes);
  const double algbw = bytes / median_us / 1e3;
  const double calls = static_cast<double>(outcome.calls);
  std::printf("{\"op\": \"allreduce\", \"impl\": \"%s\", \"dtype\": \"float32\", \"ranks\": %d, ",
              name.c_str(), context.ranks);
  std::printf("\"size_bytes\": %ld, \"iterations\": %ld, ", context.size_bytes, outcome.calls);
  std::printf("\"min_us\": %.6g, \"p50_us\": %.6g, \"p99_us\": %.6g, ", times.front(), median_us,
              Quantile(times, 0.99));
  std::printf("\"algbw_gbs\": %.6g, \"busbw_gbs\": %.6g, ", algbw,
              algbw * 2 * (context.ranks - 1) / context.ranks);
  std::printf("\"bound_us\": %.6g, \"efficiency\": %.6g, ", context.bound_us,
              context.bound_us / median_us);
  std::printf("\"context_switches\": %.6g, \"cpu_seconds_per_gb\": %.6g", outcome.switches / calls,
              outcome.cpu_us / 1e6 / (calls * bytes / 1e9));
  if (!outcome.distances_ns.empty()) PrintDistances(outcome);
  std::printf("}");
}

void PrintRows(const Contest& contest, int ranks) {
  const char* separator = "[\n";
  for (const auto& [key, outcome] : contest.outcomes()) {
    std::fputs(separator, stdout);
    separator = ",\n";
    const double bound_us = Median(contest.outcomes().at({key.first, "bound"}).times_us);
    PrintRow({ranks, key.first, bound_us}, key.second, outcome);
  }
  std::fputs("\n]\n", stdout);
}

std::vector<Entry> MakeEntries(Ranks* ranks, int64_t bytes) {
  std::vector<Entry> entries;
  entries.push_back(MakeMemoryPass(ranks, bytes, true));
  entries.push_back(MakeMemoryPass(ranks, bytes, false));
  entries.push_back(MakeMydist(ranks, bytes, true));
  entries.push_back(MakeMydist(ranks, bytes, false));
  entries.push_back(MakeEngine(ranks, bytes));
  entries.push_back(MakeOpenMpi(ranks, bytes));
  entries.push_back(MakeGloo(ranks, bytes));
  return entries;
}

Status Compare(Ranks* ranks, const Options& options) {
  const std::vector<Entry> entries =
      MakeEntries(ranks, Contest::MemoryBytes(options.plan.sizes_bytes));
  // Only now, so that threads of a contender's own go where there is room.
  const Status pinned = PinToCore(ranks->rank());
  if (!pinned.ok()) std::fprintf(stderr, "bench_allreduce: %s\n", pinned.message().c_str());
  std::vector<Contender*> contenders;
  for (const Entry& entry : entries) {
    if (entry.contender != nullptr) {
      contenders.push_back(entry.contender.get());
    } else if (ranks->rank() == 0) {
      std::fprintf(stderr, "without %s: %s\n", entry.name.c_str(), entry.reason.c_str());
    }
  }
  MYDIST_ASSIGN_OR_RETURN(const auto distance, CoreDistance::Make(ranks));
  Contest contest(ranks, contenders, distance.get(), options.plan);
  const Status status = contest.Run();
  // Before anything is torn down: a peer that waits for this rank may end the job.
  if (!status.ok()) std::fprintf(stderr, "bench_allreduce: %s\n", status.message().c_str());
  MYDIST_RETURN_IF_ERROR(status);
  if (ranks->rank() == 0) PrintRows(contest, ranks->size());
  for (Contender* const contender : contenders) MYDIST_RETURN_IF_ERROR(contender->Leave());
  return Status::Ok();
}

int Main(int argc, char** argv) {
  Options options;
  if (!ParseOptions(argc, argv, &options)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  std::unique_ptr<Ranks> ranks = MpiRanks();
  if (ranks == nullptr) {
    auto forked = ForkRanks(options.ranks);
    if (!forked.ok()) {
      std::fprintf(stderr, "bench_allreduce: %s\n", forked.status().message().c_str());
      return 2;
    }
    ranks = std::move(forked).value();
  }
  const bool success = Compare(ranks.get(), options).ok();
  std::fflush(stdout);
  const int code = ranks->Finish(success);
  // After a failure threads of a contender may still run.
  if (!success) std::_Exit(code);
  return code;
}

}  // namespace
}  // namespace mydist::bench

int main(int argc, char** argv) { return mydist::bench::Main(argc, argv); }
