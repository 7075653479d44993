#include "memory/fusion_buffer.h"

#include <cstdlib>
#include <limits>
#include <string>

#include "world/late_writes.h"

namespace mydist {
namespace {

constexpr int64_t kPageBytes = 4096;

}  // namespace

Result<uint8_t*> FusionBuffer::Reserve(int64_t bytes) {
  if (bytes <= capacity_bytes_) return memory_.get();
  // Freed first, so that growing never needs the old and the new memory at the same time.
  memory_.reset();
  capacity_bytes_ = 0;
  const bool too_large = bytes > std::numeric_limits<int64_t>::max() - kPageBytes;
  const int64_t rounded = too_large ? bytes : (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (!too_large && preferred_) memory_ = preferred_(rounded);
  if (!too_large && memory_ == nullptr) {
    memory_ = std::shared_ptr<uint8_t>(
        static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, static_cast<size_t>(rounded))),
        std::free);
  }
  if (memory_ == nullptr) {
    return Status::Internal("out of memory: a buffer of " + std::to_string(bytes) +
                            " bytes is needed to fuse or reduce tensors; free memory on this host, "
                            "run fewer ranks on it, or lower MYDIST_FUSION_THRESHOLD_MB");
  }
  memory_ = GuardFromLateWrites(std::move(memory_));
  capacity_bytes_ = rounded;
  return memory_.get();
}

}  // namespace mydist
