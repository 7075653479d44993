// PeerFindings: what has been found out about ranks beside the connections to them, as data, on its
// way to the engine. Any thread reports; the thread that drives the engine takes.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace mydist {

struct PeerFinding {
  enum class Kind {
    kDead,    // Its process has ended: its host says so.
    kSilent,  // It gives no sign of life.
  };
  int rank = 0;
  Kind kind = Kind::kSilent;
  Duration silence{};  // How long it has given no sign of life.

  bool operator==(const PeerFinding&) const = default;
};

class PeerFindings {
 public:
  void Report(const PeerFinding& finding) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    findings_.push_back(finding);
    any_.store(true);
  }
  // Cheap enough for every cycle of the engine.
  bool any() const { return any_.load(std::memory_order_relaxed); }
  std::vector<PeerFinding> Take() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    any_.store(false);
    return std::exchange(findings_, {});
  }

 private:
  std::atomic<bool> any_{false};
  Mutex mutex_;
  std::vector<PeerFinding> findings_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist
