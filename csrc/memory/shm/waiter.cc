#include "memory/shm/waiter.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <utility>

#include "base/log.h"
#include "memory/shm/bell.h"

namespace mydist::shm {

Waiter::Waiter(Arena* arena)
    : arena_(arena),
      is_crowded_(arena->is_crowded()),
      sleepers_order_(arena->SleepersOrder()),
      stall_warning_(arena) {}

// The fence, or who is about to sleep, orders the caller's change before the look at who is asleep;
// AnnounceSleep orders the other way round, so one of the two sides sees the other.
void Waiter::Ring(std::span<const int> peers) {
  if (sleepers_order_) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  for (const int peer : peers) {
    if (arena_->rank_line(peer).asleep.load(std::memory_order_relaxed) != 0) {
      RingBell(arena_->bell(peer));
    }
  }
}

void Waiter::AnnounceSleep(bool asleep) {
  arena_->rank_line(arena_->index()).asleep.store(asleep ? 1 : 0, std::memory_order_relaxed);
  if (!asleep) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!sleepers_order_ || is_blind_ || SleeperBarrier()) return;
  is_blind_ = true;
  MYDIST_LOG(kWarning) << "the kernel refuses membarrier, which it allowed at the start; waiting "
                          "for other ranks of the host now means to look every millisecond";
}

void Waiter::Pause() const {
  if (is_crowded_) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

bool Waiter::SleepUntilRung(Bell& bell, uint32_t rings) {
  return SleepOnBell(bell, rings, is_blind_ ? kBlindInterval : kCheckInterval);
}

bool Waiter::AnyLeft(std::span<const int> peers) const {
  return std::any_of(peers.begin(), peers.end(), [&](int peer) {
    return arena_->rank_line(peer).presence.load() == Presence::kLeft;
  });
}

namespace {

// The third field of /proc/<pid>/stat; the second is a name in parentheses that may hold anything.
char StateOfProcess(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() ? line[name_end + 2] : '?';
}

std::string SecondsText(Duration waited) {
  const double seconds = std::chrono::duration<double>(waited).count();
  std::string text = std::to_string(seconds);
  return text.substr(0, text.find('.') + 2) + " s";
}

}  // namespace

void StallWarning::Set(Duration first, Describe describe) {
  first_ = first;
  describe_ = std::move(describe);
}

void StallWarning::Look(Wait& wait, std::span<const int> peers) const {
  if (first_ <= Duration::zero()) return;
  if (wait.next == Duration::zero()) wait.next = first_;
  const Duration waited = Now() - wait.begin;
  if (waited < wait.next) return;
  while (wait.next <= waited) wait.next *= 2;
  MYDIST_LOG(kWarning) << Text(waited, peers);
}

std::string StallWarning::Text(Duration waited, std::span<const int> peers) const {
  // Looked at first: whoever describes the wait may end it.
  std::string whom;
  for (size_t i = 0; i < peers.size(); ++i) {
    if (i > 0) whom += ", ";
    whom += arena_->Name(peers[i]) + StateOf(peers[i]);
  }
  const std::string what = describe_ ? describe_() : "a collective";
  return what + " has begun and has waited for " + whom + " for " + SecondsText(waited) +
         ". It cannot be given up half-way: let that process go on (kill -CONT), or end it (kill "
         "-KILL), and the other ranks get an error.";
}

std::string StallWarning::StateOf(int peer) const {
  const std::optional<pid_t> pid = arena_->LockHolder(peer);
  const char state = pid && *pid > 0 ? StateOfProcess(*pid) : '?';
  if (state == 'T' || state == 't') return ", which is stopped by a signal or a debugger,";
  if (state == 'D') return ", which is stuck in the kernel (a disk or file server?),";
  return "";
}

}  // namespace mydist::shm
