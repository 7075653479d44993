#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "ranks.h"

namespace mydist::bench {
namespace {

constexpr int kMaxRanks = 64;
constexpr size_t kBlobBytes = size_t{1} << 20;  // Untouched pages cost nothing.
// Spinning longer than this means that somebody has no core.
constexpr int kSpinCount = 2000;

struct alignas(128) Counter {
  std::atomic<uint64_t> value;
};

// In memory that all ranks map. Only grows, so a barrier needs no reset.
struct Board {
  Counter arrived[kMaxRanks];
  struct {
    size_t bytes;
    uint8_t data[kBlobBytes];
  } blobs[kMaxRanks];
};

class ForkedRanks final : public Ranks {
 public:
  ForkedRanks(int rank, int size, Board* board, std::vector<pid_t> children)
      : Ranks(rank, size), board_(board), children_(std::move(children)) {}

  Result<std::vector<Bytes>> Exchange(const Bytes& mine) override {
    if (mine.size() > kBlobBytes) {
      return Status::Internal("a rank gave " + std::to_string(mine.size()) + " bytes, at most " +
                              std::to_string(kBlobBytes) + " fit. Measure fewer samples.");
    }
    auto& own = board_->blobs[rank()];
    own.bytes = mine.size();
    std::copy(mine.begin(), mine.end(), own.data);
    Barrier();
    std::vector<Bytes> all;
    for (int peer = 0; peer < size(); ++peer) {
      const auto& blob = board_->blobs[peer];
      all.emplace_back(blob.data, blob.data + blob.bytes);
    }
    Barrier();
    return all;
  }

  void Barrier() override {
    const uint64_t turn = ++turn_;
    board_->arrived[rank()].value.store(turn, std::memory_order_release);
    for (int peer = 0; peer < size(); ++peer) Await(board_->arrived[peer].value, turn);
  }

  int Finish(bool success) override {
    signal(SIGCHLD, SIG_DFL);
    for (const pid_t child : children_) {
      if (!success) kill(child, SIGKILL);
      int status = 0;
      if (waitpid(child, &status, 0) != child || status != 0) success = false;
    }
    return success ? 0 : 1;
  }

 private:
  static void Await(const std::atomic<uint64_t>& counter, uint64_t turn) {
    for (int look = 0; counter.load(std::memory_order_acquire) < turn; ++look) {
      if (look > kSpinCount) sched_yield();
    }
  }

  Board* const board_;
  const std::vector<pid_t> children_;  // Of rank 0.
  uint64_t turn_ = 0;
};

// A rank that fails ends the others: rank 0's children die with it, and it with them.
void EndWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
}

void EndWithChild(int, siginfo_t* info, void*) {
  if (info->si_status != 0) _exit(1);
}

void WatchChildren() {
  struct sigaction action {};
  action.sa_sigaction = EndWithChild;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_NOCLDSTOP;
  sigaction(SIGCHLD, &action, nullptr);
}

}  // namespace

Result<std::unique_ptr<Ranks>> ForkRanks(int size) {
  if (size < 1 || size > kMaxRanks) {
    return Status::InvalidArgument("--ranks is " + std::to_string(size) + ", expected 1 to " +
                                   std::to_string(kMaxRanks));
  }
  void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status::Internal(std::string("cannot map the ranks' board: ") + std::strerror(errno));
  }
  WatchChildren();
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  for (int rank = 1; rank < size; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) return Status::Internal(std::string("cannot fork: ") + std::strerror(errno));
    if (pid == 0) {
      signal(SIGCHLD, SIG_DFL);
      EndWithParent(parent);
      return std::unique_ptr<Ranks>(
          new ForkedRanks(rank, size, static_cast<Board*>(memory), std::vector<pid_t>()));
    }
    children.push_back(pid);
  }
  return std::unique_ptr<Ranks>(
      new ForkedRanks(0, size, static_cast<Board*>(memory), std::move(children)));
}

Status PinToCore(int rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return Status::Internal(std::string("sched_getaffinity: ") + std::strerror(errno));
  }
  int skip = rank % CPU_COUNT(&allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof(one), &one) == 0) return Status::Ok();
    break;
  }
  return Status::Internal(std::string("cannot pin to a core: ") + std::strerror(errno));
}

}  // namespace mydist::bench
