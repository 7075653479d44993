// FakeMemory: the pieces of memory that the fake devices of a process have given out, and who has
// used what of them.
// What was freed is kept for a while, so that using it is a mistake with a name and nothing worse.
// Owned by a FakeProcess, used under its lock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "fakes/access_order.h"

namespace mydist::testing {

enum class MemoryKind { kDevice, kPinned };

struct MemoryRange {
  const void* begin = nullptr;
  int64_t bytes = 0;
};

// One piece of it.
struct FakeAllocation {
  uint8_t* data() const { return memory.get(); }
  std::string Describe() const;  // "pinned memory 3 (4096 bytes)"

  MemoryKind kind;
  int64_t bytes;
  int number;
  const void* owner;                // The device that gave it.
  std::shared_ptr<uint8_t> memory;  // Poisoned, on pages of its own.
  AccessMap accesses;
  bool is_freed = false;
};

class FakeMemory {
 public:
  static constexpr uint8_t kPoison = 0xC7;

  std::shared_ptr<FakeAllocation> Add(MemoryKind kind, int64_t bytes, const void* owner);
  // To be called once for each.
  void Free(const std::shared_ptr<FakeAllocation>& allocation);

  // The one in which all of `range` lies, which is not empty. kInvalidArgument, with what is wrong
  // with it, where there is none, it is freed, or the range reaches beyond it.
  Result<std::shared_ptr<FakeAllocation>> Find(const MemoryRange& range) const;

  // What nobody has freed of it.
  std::vector<std::string> LivingOf(const void* owner) const;

 private:
  static constexpr int64_t kKeptBytes = int64_t{32} << 20;

  std::shared_ptr<FakeAllocation> At(const void* address) const;

  int made_count_ = 0;
  std::map<const uint8_t*, std::shared_ptr<FakeAllocation>> by_address_;
  std::deque<std::shared_ptr<FakeAllocation>> freed_;  // The oldest first.
  int64_t freed_bytes_ = 0;
};

}  // namespace mydist::testing
