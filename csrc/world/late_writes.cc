#include "world/late_writes.h"

#include <atomic>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace mydist {
namespace {

struct Kept {
  Mutex mutex;
  std::atomic<int64_t> expected{0};  // How often it has been said.
  std::vector<std::shared_ptr<void>> memory MYDIST_GUARDED_BY(mutex);

  void Keep(std::shared_ptr<void> more) MYDIST_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    memory.push_back(std::move(more));
  }
};

Kept& TheKept() {
  static auto* const kKept = new Kept;  // Never destroyed.
  return *kKept;
}

}  // namespace

void ExpectLateWrites() { ++TheKept().expected; }

void KeepFromLateWrites(std::shared_ptr<void> memory) {
  if (TheKept().expected.load() > 0) TheKept().Keep(std::move(memory));
}

std::shared_ptr<uint8_t> GuardFromLateWrites(std::shared_ptr<uint8_t> memory) {
  if (memory == nullptr) return memory;
  uint8_t* const data = memory.get();
  const auto release = [memory = std::move(memory),
                        expected = TheKept().expected.load()](uint8_t*) mutable {
    if (TheKept().expected.load() > expected) TheKept().Keep(memory);
    memory.reset();
  };
  return {data, release};
}

}  // namespace mydist
