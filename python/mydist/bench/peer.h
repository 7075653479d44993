// What the programs that mydist.bench starts share: the problem of problem.py, the loop that
// measures one implementation, and the line that reports it. Every rank rewrites its tensors, all
// meet at a barrier, the calls are timed on every rank and the slowest rank counts. Every result is
// checked. Errors are exceptions, which end the program of the rank.
#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace mydist::bench {

constexpr int kPeriod = 7;
constexpr int kWarmUps = 2;
// Limits of the warm-up of an implementation that does not settle.
constexpr long kMaxWarmUps = 1000;
constexpr long kMaxWarmUpBytes = 64 << 20;
// Tensors that are timed together begin on lines of their own.
constexpr long kLineBytes = 128;

// kScale multiplies each rank's tensor by kFactor: the speed of the memory.
enum class Op { kAllreduce, kAllgather, kBroadcast, kAlltoall, kReducescatter, kBarrier, kScale };
constexpr long kFactor = 2;

inline Op OpOf(const std::string& name) {
  const char* const names[] = {"allreduce", "allgather",     "broadcast",
                               "alltoall",  "reducescatter", "barrier"};
  const auto* const found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) throw std::invalid_argument("unknown collective " + name);
  return static_cast<Op>(found - names);
}

// One collective on one rank; `elements` is what the rank puts in.
struct Problem {
  Op op = Op::kAllreduce;
  int rank = 0;
  int ranks = 1;
  long elements = 0;

  bool IsInPlace() const {
    return op != Op::kAllgather && op != Op::kAlltoall && op != Op::kReducescatter;
  }
  long OutputElements() const {
    if (op == Op::kAllgather) return elements * ranks;
    return op == Op::kReducescatter ? elements / ranks : elements;
  }
};

// A sample is so many calls, timed together, each on a tensor of its own.
struct Size {
  long elements = 0;
  int samples = 1;
  int calls = 1;
};

// Arguments of the form ELEMENTS:SAMPLES:CALLS, from the `first` on.
inline std::vector<Size> ParseSizes(int argc, char** argv, int first) {
  std::vector<Size> sizes;
  for (int i = first; i < argc; ++i) {
    Size size;
    if (std::sscanf(argv[i], "%ld:%d:%d", &size.elements, &size.samples, &size.calls) != 3 ||
        size.elements < 0 || size.samples < 1 || size.calls < 1) {
      throw std::invalid_argument(std::string(argv[i]) + ", expected ELEMENTS:SAMPLES:CALLS");
    }
    sizes.push_back(size);
  }
  if (sizes.empty()) throw std::invalid_argument("no ELEMENTS:SAMPLES:CALLS");
  return sizes;
}

// The ranks of an implementation. All calls are collective.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual void Barrier() = 0;
  // The barrier after the timed calls.
  virtual void AwaitOthers() { Barrier(); }
  // The numbers of all ranks, in rank order; each gives as many.
  virtual std::vector<double> Gather(std::vector<double> mine) = 0;
  // Whether calls cost by now what they are going to cost; the same on all ranks.
  virtual bool IsSettled() const { return true; }
};

inline long Offset(int rank, int iteration) { return (rank * 3 + iteration) % 5; }

template <typename T>
void Fill(const Problem& problem, int iteration, T* data) {
  const long offset = Offset(problem.rank, iteration);
  for (long i = 0; i < problem.elements; ++i) data[i] = static_cast<T>(i % kPeriod + offset);
}

template <typename T>
void Check(const std::string& name, const Problem& problem, int iteration, const T* output) {
  const int ranks = problem.ranks;
  const long part = std::max(1L, problem.elements / ranks);
  const long own = problem.rank * part;
  const auto value = [&](long at, long rank) {
    return at % kPeriod + Offset(static_cast<int>(rank), iteration);
  };
  long offsets = 0;
  for (int rank = 0; rank < ranks; ++rank) offsets += Offset(rank, iteration);
  const auto sum = [&](long at) { return ranks * (at % kPeriod) + offsets; };
  const auto check = [&](auto expected) {
    for (long i = 0; i < problem.OutputElements(); ++i) {
      if (output[i] == static_cast<T>(expected(i))) continue;
      throw std::runtime_error(
          name + " gave a wrong result on rank " + std::to_string(problem.rank) + ": element " +
          std::to_string(i) + " of " + std::to_string(problem.OutputElements()) + " is " +
          std::to_string(output[i]) + ", expected " + std::to_string(expected(i)));
    }
  };
  const long count = problem.elements;
  switch (problem.op) {
    case Op::kAllreduce:
      return check(sum);
    case Op::kBroadcast:
      return check([&](long i) { return value(i, 0); });
    case Op::kAllgather:
      return check([&](long i) { return value(i % count, i / count); });
    case Op::kAlltoall:
      return check([&](long i) { return value(own + i % part, i / part); });
    case Op::kReducescatter:
      return check([&](long i) { return sum(own + i); });
    case Op::kScale:
      return check([&](long i) { return kFactor * value(i, problem.rank); });
    case Op::kBarrier:
      return check([&](long i) { return value(i, problem.rank); });
  }
}

inline double SecondsOf(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

inline double ContextSwitches() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_nvcsw + usage.ru_nivcsw);
}

// From the start of one tensor to the next.
template <typename T>
long StrideOf(long elements) {
  const long line = kLineBytes / static_cast<long>(sizeof(T));
  return (elements + line) / line * line;
}

// "result NAME ELEMENTS", CPU seconds and context switches of all samples, means over the ranks,
// then the microseconds of each sample on the slowest rank. Of calls timed as one: per call.
inline void Report(const std::string& name, Ranks& ranks, const Problem& problem,
                   const std::vector<double>& mine) {
  const std::vector<double> all = ranks.Gather(mine);
  if (problem.rank != 0) return;
  std::printf("result %s %ld", name.c_str(), problem.elements);
  for (size_t i = 0; i < mine.size(); ++i) {
    double sum = 0;
    double most = 0;
    for (size_t at = i; at < all.size(); at += mine.size()) {
      sum += all[at];
      most = std::max(most, all[at]);
    }
    std::printf(" %.9g", i < 2 ? sum / problem.ranks : most);
  }
  std::printf("\n");
  std::fflush(stdout);
}

// `input` and `output` have room for size.calls tensors. The variable BENCH_FALSIFY names an
// implementation whose results are made wrong; it is for the test that this is noticed.
template <typename T, typename Call>
void Measure(const std::string& name, Ranks& ranks, const Problem& problem, const Size& size,
             T* input, T* output, Call call) {
  const long input_stride = StrideOf<T>(problem.elements);
  const long output_stride = StrideOf<T>(problem.OutputElements());
  const char* const falsified = std::getenv("BENCH_FALSIFY");
  const bool is_false = falsified != nullptr && name == falsified;
  const long bytes = std::max(1L, size.calls * problem.elements * static_cast<long>(sizeof(T)));
  const long most_warm_ups = std::min(kMaxWarmUps, kMaxWarmUpBytes / bytes);
  std::vector<double> numbers = {0, 0};
  for (int iteration = 0; numbers.size() < 2 + static_cast<size_t>(size.samples); ++iteration) {
    const bool counts = numbers.size() > 2 || (iteration >= kWarmUps &&
                                               (iteration >= most_warm_ups || ranks.IsSettled()));
    for (int i = 0; i < size.calls; ++i) Fill(problem, iteration, input + i * input_stride);
    ranks.Barrier();
    const double switches = ContextSwitches();
    const double cpu = SecondsOf(CLOCK_PROCESS_CPUTIME_ID);
    const double started = SecondsOf(CLOCK_MONOTONIC);
    for (int i = 0; i < size.calls; ++i) call(input + i * input_stride, output + i * output_stride);
    const double elapsed = SecondsOf(CLOCK_MONOTONIC) - started;
    if (counts) {
      numbers[0] += (SecondsOf(CLOCK_PROCESS_CPUTIME_ID) - cpu) / size.calls;
      numbers[1] += (ContextSwitches() - switches) / size.calls;
      numbers.push_back(elapsed * 1e6 / size.calls);
    }
    // The first rank that is done must not check while others, on the same core perhaps, are timed.
    ranks.AwaitOthers();
    T* const results = problem.IsInPlace() ? input : output;
    if (is_false && problem.rank == problem.ranks - 1) results[problem.OutputElements() / 2] += 1;
    for (int i = 0; i < size.calls; ++i) {
      Check(name, problem, iteration,
            results + i * (problem.IsInPlace() ? input_stride : output_stride));
    }
  }
  Report(name, ranks, problem, numbers);
}

// All sizes of an implementation that has `template <typename T> void Call(const Problem&, T*,
// T*)`.
template <typename T, typename Implementation>
void MeasureAll(const std::string& name, Implementation& ranks, Problem problem,
                const std::vector<Size>& sizes) {
  for (const Size& size : sizes) {
    problem.elements = size.elements;
    const auto calls = static_cast<size_t>(size.calls);
    std::vector<T> input(calls * static_cast<size_t>(StrideOf<T>(size.elements)));
    std::vector<T> output(calls * static_cast<size_t>(StrideOf<T>(problem.OutputElements())));
    Measure<T>(name, ranks, problem, size, input.data(), output.data(),
               [&](T* in, T* out) { ranks.template Call<T>(problem, in, out); });
  }
}

template <typename Implementation>
void MeasureTyped(const std::string& type, const std::string& name, Implementation& ranks,
                  const Problem& problem, const std::vector<Size>& sizes) {
  if (type == "float32") return MeasureAll<float>(name, ranks, problem, sizes);
  if (type == "float64") return MeasureAll<double>(name, ranks, problem, sizes);
  if (type == "int32") return MeasureAll<int32_t>(name, ranks, problem, sizes);
  if (type == "int64") return MeasureAll<int64_t>(name, ranks, problem, sizes);
  throw std::invalid_argument("unknown type " + type);
}

// Restricts this process to a core of its own. Where ranks outnumber cores it does nothing, or,
// with BENCH_PIN in the environment, counts round.
inline void PinToCore(int rank, int ranks) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return;
  if (ranks > CPU_COUNT(&cores) && std::getenv("BENCH_PIN") == nullptr) return;
  int skip = rank % CPU_COUNT(&cores);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores) || skip-- > 0) continue;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    sched_setaffinity(0, sizeof(cores), &cores);
    return;
  }
}

// The exit code of a program: 1 with the message of an exception, as soon as there is one.
template <typename Program>
int RunProgram(const char* name, Program program) {
  try {
    program();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

}  // namespace mydist::bench
