// bench_allreduce: float32 allreduce of mydist's core, called directly and through the engine, with
// the speed of the memory and of the cache as bounds. It measures and reports as
// python/mydist/bench/peer.h says; `python -m benchmarks` starts it next to its peers.
//   bench_allreduce RANKS ELEMENTS:SAMPLES:CALLS ...
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>

#include "algorithms/shm/shm_collectives.h"
#include "base/usable_cores.h"
#include "job/job.h"
#include "memory/shm/arena.h"
#include "peer.h"
#include "transport/shm_transport.h"

namespace mydist::bench {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr int kMaxRanks = 64;
constexpr size_t kBlobBytes = size_t{1} << 18;
constexpr size_t kPageBytes = 4096;
// A wait that spins longer than this is for a rank that has no core.
constexpr int kSpins = 2000;
// Calls after which a schedule that has not frozen is not expected to.
constexpr int kPatience = 100;
constexpr int kLineTurns = 50;

void Require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <typename T>
T Require(Result<T> result) {
  Require(result.status());
  return std::move(result).value();
}

struct alignas(kLineBytes) Counter {
  std::atomic<uint64_t> value;

  void Await(uint64_t least) const {
    for (int spins = 0; value.load(std::memory_order_acquire) < least; ++spins) {
      if (spins > kSpins) sched_yield();
    }
  }
};

// In memory that all ranks map. Counters only grow.
struct Board {
  Counter arrived[kMaxRanks];
  Counter line[2];
  struct {
    size_t bytes;
    uint8_t data[kBlobBytes];
  } blobs[kMaxRanks];
};

// The ranks: this process and those it forks, which end with it.
class Forked final : public Ranks {
 public:
  explicit Forked(int size) : size_(size) {
    if (size < 1 || size > kMaxRanks) throw std::invalid_argument("RANKS, expected 1 to 64");
    void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
    board_ = static_cast<Board*>(memory);
    setpgid(0, 0);  // A rank that fails ends the group: see Finish.
    for (int rank = 1; rank < size && rank_ == 0; ++rank) {
      const pid_t pid = fork();
      if (pid < 0) throw std::runtime_error("fork failed");
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        rank_ = rank;
      }
    }
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  Counter* lines() const { return board_->line; }

  void Barrier() override {
    board_->arrived[rank_].value.store(++turn_, std::memory_order_release);
    for (int peer = 0; peer < size_; ++peer) board_->arrived[peer].Await(turn_);
  }

  std::vector<Bytes> Exchange(const Bytes& mine) {
    if (mine.size() > kBlobBytes) throw std::runtime_error("too many samples");
    auto& own = board_->blobs[rank_];
    own.bytes = mine.size();
    std::copy(mine.begin(), mine.end(), own.data);
    Barrier();
    std::vector<Bytes> all;
    for (int peer = 0; peer < size_; ++peer) {
      const auto& blob = board_->blobs[peer];
      all.emplace_back(blob.data, blob.data + blob.bytes);
    }
    Barrier();
    return all;
  }

  std::vector<double> Gather(std::vector<double> mine) override {
    Bytes bytes(mine.size() * sizeof(double));
    std::memcpy(bytes.data(), mine.data(), bytes.size());
    std::vector<double> all;
    for (const Bytes& theirs : Exchange(bytes)) {
      std::memcpy(mine.data(), theirs.data(), theirs.size());
      all.insert(all.end(), mine.begin(), mine.end());
    }
    return all;
  }

  int Finish(int code) const {
    if (code != 0) kill(0, SIGKILL);
    while (wait(nullptr) > 0) {
    }
    return 0;
  }

 private:
  const int size_;
  Board* board_ = nullptr;
  int rank_ = 0;
  uint64_t turn_ = 0;
};

// What is compared, on tensors within `memory`.
class Contender : public Ranks {
 public:
  Contender(Forked* ranks, std::shared_ptr<float> memory, Op op)
      : ranks_(ranks), memory_(std::move(memory)), op_(op) {}

  float* memory() const { return memory_.get(); }
  Op op() const { return op_; }
  virtual void Call(float* data, int64_t count) = 0;
  virtual void Leave() {}

  void Barrier() override { ranks_->Barrier(); }
  std::vector<double> Gather(std::vector<double> mine) override {
    return ranks_->Gather(std::move(mine));
  }

 private:
  Forked* const ranks_;
  const std::shared_ptr<float> memory_;
  const Op op_;
};

// Aligned to a page, its pages present.
std::shared_ptr<float> PrivateMemory(size_t bytes) {
  const size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const memory = std::aligned_alloc(kPageBytes, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, rounded);
  return {static_cast<float*>(memory), std::free};
}

std::shared_ptr<float> Cleared(const std::shared_ptr<uint8_t>& memory, size_t bytes) {
  if (memory == nullptr) throw std::runtime_error("the ranks have no heap in common");
  std::memset(memory.get(), 0, bytes);
  return {memory, reinterpret_cast<float*>(memory.get())};
}

// A call on a rank's own memory, which waits for no other rank unless it says so.
class Local final : public Contender {
 public:
  using Function = std::function<void(float* data, int64_t count)>;
  Local(Forked* ranks, size_t bytes, Op op, Function function)
      : Contender(ranks, PrivateMemory(bytes), op), function_(std::move(function)) {}
  void Call(float* data, int64_t count) override { function_(data, count); }

 private:
  const Function function_;
};

#define MYDIST_MULTIPLY_LOOP(Vector)                                                        \
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(float);                                \
  int64_t i = 0;                                                                            \
  for (; i + kLanes <= count; i += kLanes) *reinterpret_cast<Vector*>(data + i) *= kFactor; \
  for (; i < count; ++i) data[i] *= kFactor

typedef float Vector16 [[gnu::vector_size(16), gnu::may_alias]];
void MultiplyBy16(float* data, int64_t count) { MYDIST_MULTIPLY_LOOP(Vector16); }

// As wide as the processor can, or the pass would be bound by instructions and not by memory.
#if defined(__x86_64__)
typedef float Vector32 [[gnu::vector_size(32), gnu::may_alias]];
typedef float Vector64 [[gnu::vector_size(64), gnu::may_alias]];
[[gnu::target("avx2")]] void MultiplyBy32(float* data, int64_t count) {
  MYDIST_MULTIPLY_LOOP(Vector32);
}
[[gnu::target("avx512f")]] void MultiplyBy64(float* data, int64_t count) {
  MYDIST_MULTIPLY_LOOP(Vector64);
}
Local::Function WidestPass() {
  if (__builtin_cpu_supports("avx512f")) return MultiplyBy64;
  return __builtin_cpu_supports("avx2") ? MultiplyBy32 : MultiplyBy16;
}
#else
Local::Function WidestPass() { return MultiplyBy16; }
#endif

// A cache line goes from rank 0 to rank 1 and back, 100 ways in all.
void MoveLine(const Forked& ranks, uint64_t* turn) {
  for (int i = 0; i < kLineTurns; ++i) {
    ++*turn;
    if (ranks.rank() == 1) ranks.lines()[0].Await(*turn);
    ranks.lines()[ranks.rank()].value.store(*turn, std::memory_order_release);
    if (ranks.rank() == 0) ranks.lines()[1].Await(*turn);
  }
}

// The collectives of the core, with no engine and no negotiation.
class Core final : public Contender {
 public:
  Core(Forked* ranks, std::shared_ptr<float> memory, std::unique_ptr<shm::ShmPort> port,
       const std::vector<int>& all)
      : Contender(ranks, std::move(memory), Op::kAllreduce),
        port_(std::move(port)),
        collectives_(port_.get(), all) {}
  void Call(float* data, int64_t count) override {
    Require(collectives_.Allreduce(data, count, {DataType::kFloat32, ReduceOp::kSum}));
  }
  void Barrier() override { Require(collectives_.Barrier()); }

 private:
  const std::unique_ptr<shm::ShmPort> port_;
  shm::ShmCollectives collectives_;
};

std::unique_ptr<Contender> MakeCore(Forked* ranks, size_t bytes, bool in_arena) {
  std::vector<int> all(static_cast<size_t>(ranks->size()));
  std::iota(all.begin(), all.end(), 0);
  shm::ArenaOptions options;
  options.ranks = all;
  options.index = ranks->rank();
  options.host = "this host";
  options.is_crowded = !HaveACoreEach(std::vector(all.size(), UsableCores::OfThisThread()));
  auto made =
      Require(shm::Arena::Establish(options, [&](const Bytes& mine) -> Result<std::vector<Bytes>> {
        return ranks->Exchange(mine);
      }));
  if (made.arena == nullptr) throw std::runtime_error(made.reason);
  auto port = std::make_unique<shm::ShmPort>(std::move(made.arena));
  std::shared_ptr<float> memory;
  if (in_arena) {
    const auto heap = port->heap();
    memory = Cleared(
        heap == nullptr ? nullptr : Require(heap->Allocate(static_cast<int64_t>(bytes))), bytes);
  } else {
    memory = PrivateMemory(bytes);
  }
  return std::make_unique<Core>(ranks, std::move(memory), std::move(port), all);
}

// mydist as a program meets it: submitted to the engine, which the waiting caller drives.
class Engine final : public Contender {
 public:
  using Contender::Contender;

  void Call(float* data, int64_t count) override {
    // A tensor has one name wherever it comes again.
    Reduce(std::to_string(data - memory()) + "+" + std::to_string(count), data, count);
  }

  // A sum of how many ranks negotiate tells all of them whether the schedule has frozen.
  void Barrier() override {
    const EngineStats stats = Require(process::CurrentJob())->engine().stats();
    negotiating_count_ = stats.frozen_steps == frozen_steps_ ? 1.0F : 0.0F;
    frozen_steps_ = stats.frozen_steps;
    Reduce("barrier", &negotiating_count_, 1);
    ++barrier_count_;
    has_settled_ = has_settled_ || negotiating_count_ == 0;
  }

  // Under a name of its own, or it would begin a step.
  void AwaitOthers() override { Reduce("finish", &unused_, 1); }

  bool IsSettled() const override {
    return negotiating_count_ == 0 || (!has_settled_ && barrier_count_ > kPatience);
  }

  void Leave() override { Require(process::Shutdown()); }

 private:
  static void Reduce(std::string name, float* data, int64_t count) {
    std::vector<Submission> tensors(1);
    tensors[0].request.name = std::move(name);
    tensors[0].request.shape = Shape({count});
    tensors[0].input = tensors[0].output = data;
    const Handle handle =
        Require(Require(process::CurrentJob())->engine().Submit(std::move(tensors), Pace::kDriven));
    const auto outcome =
        Require(process::WaitWhile(handle, std::chrono::hours(1), [] { return true; }));
    Require(outcome ? *outcome : Status::Internal("a wait without a deadline has ended too early"));
  }

  float negotiating_count_ = 0;
  int64_t frozen_steps_ = 0;
  int barrier_count_ = 0;
  float unused_ = 0;
  bool has_settled_ = false;
};

std::unique_ptr<Contender> MakeEngine(Forked* ranks, size_t bytes) {
  Require(process::Init({.rank = ranks->rank(),
                         .size = ranks->size(),
                         .backend = "local",
                         .exchange = [ranks](const Bytes& mine) -> Result<std::vector<Bytes>> {
                           return ranks->Exchange(mine);
                         }}));
  const auto job = Require(process::CurrentJob());
  auto memory = Cleared(job->engine().AllocateShared(static_cast<int64_t>(bytes)), bytes);
  return std::make_unique<Engine>(ranks, std::move(memory), Op::kAllreduce);
}

using Named = std::pair<std::string, std::unique_ptr<Contender>>;

std::vector<Named> MakeContenders(Forked* ranks, size_t bytes) {
  std::vector<Named> made;
  made.emplace_back("bound", new Local(ranks, bytes, Op::kScale, WidestPass()));
  made.emplace_back("plain-pass", new Local(ranks, bytes, Op::kScale, MultiplyBy16));
  made.emplace_back("mydist-arena", MakeCore(ranks, bytes, true));
  made.emplace_back("mydist-private", MakeCore(ranks, bytes, false));
  made.emplace_back("mydist-engine", MakeEngine(ranks, bytes));
  if (ranks->size() == 2 && HaveACoreEach(std::vector(2, UsableCores::OfThisThread()))) {
    auto turn = std::make_shared<uint64_t>(0);
    made.emplace_back("100-lines",
                      new Local(ranks, bytes, Op::kBarrier,
                                [ranks, turn](float*, int64_t) { MoveLine(*ranks, turn.get()); }));
  }
  return made;
}

void Compare(Forked* ranks, const std::vector<Size>& sizes) {
  long most = 0;
  for (const Size& size : sizes) most = std::max(most, size.calls * StrideOf<float>(size.elements));
  const auto contenders = MakeContenders(ranks, static_cast<size_t>(most) * sizeof(float));
  PinToCore(ranks->rank(), ranks->size());  // Threads of the engine have started: not pinned.
  for (const Size& size : sizes) {
    for (const Named& named : contenders) {
      Contender* const contender = named.second.get();
      const Problem problem{contender->op(), ranks->rank(), ranks->size(), size.elements};
      Measure<float>(named.first, *contender, problem, size, contender->memory(), nullptr,
                     [&](float* data, float*) { contender->Call(data, size.elements); });
    }
  }
  for (const Named& named : contenders) named.second->Leave();
}

int Main(int argc, char** argv) {
  std::unique_ptr<Forked> ranks;
  const int code = RunProgram("bench_allreduce", [&] {
    if (argc < 3) throw std::invalid_argument("expected RANKS ELEMENTS:SAMPLES:CALLS ...");
    const std::vector<Size> sizes = ParseSizes(argc, argv, 2);
    ranks = std::make_unique<Forked>(std::atoi(argv[1]));
    Compare(ranks.get(), sizes);
  });
  return ranks == nullptr ? code : ranks->Finish(code);
}

}  // namespace
}  // namespace mydist::bench

int main(int argc, char** argv) { return mydist::bench::Main(argc, argv); }
