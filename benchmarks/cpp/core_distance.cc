#include "core_distance.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

namespace mydist::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kExchanges = 5;  // The shortest counts: the others may have been interrupted.
constexpr int kTurns = 100;

std::string ErrnoText(const char* what) {
  return std::string("core distance: ") + what + ": " + std::strerror(errno);
}

Result<double> ToDouble(const Bytes& bytes) {
  double value = 0;
  if (bytes.size() != sizeof(value)) return Status::Internal("core distance: not a number");
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

}  // namespace

struct CoreDistance::Lines {
  struct alignas(128) Line {
    std::atomic<uint64_t> turn;
  };
  Line of_rank[2];
};

Result<std::unique_ptr<CoreDistance>> CoreDistance::Make(Ranks* ranks) {
  if (ranks->size() < 2 || ranks->size() > sysconf(_SC_NPROCESSORS_ONLN)) {
    return std::unique_ptr<CoreDistance>();
  }
  std::string path;
  int file = -1;
  if (ranks->rank() == 0) {
    file = memfd_create("core distance", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, sizeof(Lines)) == 0) {
      path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
    }
  }
  // Also of a rank 0 that has failed, or the others would wait for it.
  MYDIST_ASSIGN_OR_RETURN(const auto paths, ranks->Exchange(Bytes(path.begin(), path.end())));
  if (ranks->rank() != 0) {
    path.assign(paths[0].begin(), paths[0].end());
    file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  }
  void* const memory =
      file < 0 ? MAP_FAILED
               : mmap(nullptr, sizeof(Lines), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const std::string failure = memory == MAP_FAILED ? ErrnoText("no memory in common") : "";
  // Everybody has it open, or knows who has not.
  MYDIST_ASSIGN_OR_RETURN(const auto failures,
                          ranks->Exchange(Bytes(failure.begin(), failure.end())));
  if (file >= 0) close(file);
  for (const Bytes& theirs : failures) {
    if (!theirs.empty()) return Status::Internal(std::string(theirs.begin(), theirs.end()));
  }
  return std::unique_ptr<CoreDistance>(new CoreDistance(ranks, static_cast<Lines*>(memory)));
}

CoreDistance::~CoreDistance() { munmap(lines_, sizeof(Lines)); }

Result<double> CoreDistance::MeasureNs() {
  ranks_->Barrier();
  double shortest_ns = 0;
  for (int exchange = 0; exchange < kExchanges && ranks_->rank() < 2; ++exchange) {
    std::atomic<uint64_t>& mine = lines_->of_rank[ranks_->rank()].turn;
    const std::atomic<uint64_t>& theirs = lines_->of_rank[1 - ranks_->rank()].turn;
    const Clock::time_point started = Clock::now();
    for (int i = 0; i < kTurns; ++i) {
      ++turn_;
      if (ranks_->rank() == 0) mine.store(turn_, std::memory_order_release);
      while (theirs.load(std::memory_order_acquire) < turn_) {
      }
      if (ranks_->rank() == 1) mine.store(turn_, std::memory_order_release);
    }
    const std::chrono::duration<double, std::nano> elapsed = Clock::now() - started;
    const double ns = elapsed.count() / (2 * kTurns);
    shortest_ns = exchange == 0 ? ns : std::min(shortest_ns, ns);
  }
  Bytes bytes(sizeof(shortest_ns));
  std::memcpy(bytes.data(), &shortest_ns, sizeof(shortest_ns));
  MYDIST_ASSIGN_OR_RETURN(const auto all, ranks_->Exchange(bytes));
  return ToDouble(all[0]);
}

}  // namespace mydist::bench
