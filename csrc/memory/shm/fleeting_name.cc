#include "memory/shm/fleeting_name.h"

#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace mydist::shm {
namespace {

// With which launchers, terminals and container runtimes end the ranks that wait for a dead one.
constexpr std::array kEndingSignals = {SIGTERM, SIGHUP, SIGINT};

// What a signal handler may read. Ranks that are threads of one process have one each.
struct KnownPath {
  std::atomic<bool> is_taken{false};
  std::atomic<bool> is_set{false};
  std::array<char, PATH_MAX> path{};
};
std::array<KnownPath, 16> known_paths;

std::mutex watch_mutex;
int watcher_count = 0;
std::array<struct sigaction, kEndingSignals.size()> actions_before;

// Only what may be called in a signal handler.
void RemoveOwn(const char* path) {
  struct stat info {};
  if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) return;
  unlink(path);
}

// What the signal did before.
void GoOn(const struct sigaction& before, int number, siginfo_t* info, void* context) {
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler == SIG_DFL) {
    signal(number, SIG_DFL);
    raise(number);
  } else {
    before.sa_handler(number);
  }
}

void OnEndingSignal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  for (const KnownPath& known : known_paths) {
    if (known.is_set.load()) RemoveOwn(known.path.data());
  }
  errno = error;
  for (size_t i = 0; i < kEndingSignals.size(); ++i) {
    if (kEndingSignals[i] == number) GoOn(actions_before[i], number, info, context);
  }
}

bool IsOurs(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &OnEndingSignal;
}

void WatchSignals() {
  const std::lock_guard lock(watch_mutex);
  if (watcher_count++ > 0) return;
  for (size_t i = 0; i < kEndingSignals.size(); ++i) {
    struct sigaction& before = actions_before[i];
    if (sigaction(kEndingSignals[i], nullptr, &before) != 0) continue;
    if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_IGN) continue;
    struct sigaction ours = before;
    ours.sa_sigaction = &OnEndingSignal;
    ours.sa_flags |= SA_SIGINFO;
    sigaction(kEndingSignals[i], &ours, nullptr);
  }
}

void UnwatchSignals() {
  const std::lock_guard lock(watch_mutex);
  if (--watcher_count > 0) return;
  for (size_t i = 0; i < kEndingSignals.size(); ++i) {
    struct sigaction now {};
    // Not where the program has put in another one meanwhile.
    if (sigaction(kEndingSignals[i], nullptr, &now) != 0 || !IsOurs(now)) continue;
    sigaction(kEndingSignals[i], &actions_before[i], nullptr);
  }
}

// With more names than there are places, the last ones are not known to the handler.
void TellHandler(const std::string& path) {
  for (KnownPath& known : known_paths) {
    if (path.size() >= known.path.size() || known.is_taken.exchange(true)) continue;
    std::memcpy(known.path.data(), path.c_str(), path.size() + 1);
    known.is_set.store(true);
    return;
  }
}

void ForgetInHandler(const std::string& path) {
  for (KnownPath& known : known_paths) {
    if (!known.is_set.load() || path != known.path.data()) continue;
    known.is_set.store(false);
    known.is_taken.store(false);
    return;
  }
}

}  // namespace

FleetingName::FleetingName(const std::string& directory, const std::string& name)
    : path_(name.empty() ? "" : directory + "/" + name) {
  if (path_.empty()) return;
  TellHandler(path_);
  WatchSignals();
}

FleetingName::~FleetingName() {
  if (path_.empty()) return;
  RemoveOwn(path_.c_str());
  UnwatchSignals();
  ForgetInHandler(path_);
}

}  // namespace mydist::shm
