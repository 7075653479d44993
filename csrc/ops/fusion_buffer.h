// FusionBuffer: persistent memory that only grows, for fused batches and for what peers send.
// Owned by the engine (fusing) and by a Collectives (scratch), used by whoever drives the engine.
// Once it has seen the largest batch, no call allocates any more.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "base/export.h"
#include "base/result.h"

namespace mydist {

class MYDIST_EXPORT FusionBuffer {
 public:
  static constexpr int64_t kAlignmentBytes = 64;

  // At least `bytes` of memory aligned to kAlignmentBytes, valid until the next Reserve; what it
  // held is lost when it grows. Never null when bytes > 0. kInternal when there is no such memory.
  Result<uint8_t*> Reserve(int64_t bytes);

  int64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  int64_t capacity_bytes_ = 0;
};

}  // namespace mydist
