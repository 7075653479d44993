#include "ps/buffer.h"

#include <map>
#include <utility>

#include "base/mutex.h"

namespace mydist::ps {
namespace {

// What malloc keeps itself.
constexpr size_t kSmall = size_t{128} << 10;
// Of all that is kept: as much as a worker has on its way by default.
constexpr size_t kMostKept = size_t{16} << 20;

// The buffers of this process that no payload uses.
class KeptBuffers {
 public:
  using Memory = std::unique_ptr<uint8_t[]>;

  // Null: none that fits, and is less than twice as large.
  std::pair<size_t, Memory> Take(size_t bytes) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto found = kept_.lower_bound(bytes);
    if (found == kept_.end() || found->first >= 2 * bytes) return {0, nullptr};
    std::pair<size_t, Memory> taken(found->first, std::move(found->second));
    kept_.erase(found);
    bytes_ -= taken.first;
    return taken;
  }
  void Keep(size_t bytes, Memory memory) MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (bytes > kMostKept - bytes_) return;
    bytes_ += bytes;
    kept_.emplace_hint(kept_.lower_bound(bytes), bytes, std::move(memory));
  }

 private:
  Mutex mutex_;
  std::multimap<size_t, Memory> kept_ MYDIST_GUARDED_BY(mutex_);
  size_t bytes_ MYDIST_GUARDED_BY(mutex_) = 0;
};

// Never destroyed: threads may give memory back while the process ends.
KeptBuffers& Kept() {
  static auto* const kept = new KeptBuffers();
  return *kept;
}

}  // namespace

void ReturnBuffer::operator()(uint8_t* memory) const {
  std::unique_ptr<uint8_t[]> own(memory);
  if (bytes_ >= kSmall) Kept().Keep(bytes_, std::move(own));
}

Buffer TakeBuffer(size_t bytes) {
  if (bytes >= kSmall) {
    auto [size, memory] = Kept().Take(bytes);
    if (memory != nullptr) return Buffer(memory.release(), ReturnBuffer(size));
  }
  return Buffer(new uint8_t[bytes], ReturnBuffer(bytes));
}

}  // namespace mydist::ps
