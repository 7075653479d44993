#include "base/late_writes.h"

#include <atomic>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace mydist {
namespace {

struct Kept {
  Mutex mutex;
  std::atomic<bool> is_expected{false};
  std::vector<std::shared_ptr<void>> memory MYDIST_GUARDED_BY(mutex);
};

Kept& TheKept() {
  static auto* const kKept = new Kept;  // Never destroyed.
  return *kKept;
}

}  // namespace

void ExpectLateWrites() { TheKept().is_expected.store(true); }

void KeepFromLateWrites(std::shared_ptr<void> memory) {
  if (!TheKept().is_expected.load()) return;
  MutexLock lock(TheKept().mutex);
  TheKept().memory.push_back(std::move(memory));
}

}  // namespace mydist
