// Buffer: memory for a payload. Large ones are kept for the next payload: new memory of the system
// costs a page fault for every 4 KiB, which may take longer than to copy a piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/export.h"

namespace mydist::ps {

// Gives the memory back. Any thread.
class MYDIST_EXPORT ReturnBuffer {
 public:
  explicit ReturnBuffer(size_t bytes = 0) : bytes_(bytes) {}
  void operator()(uint8_t* memory) const;

 private:
  size_t bytes_;
};
using Buffer = std::unique_ptr<uint8_t[], ReturnBuffer>;

// Of so many bytes, with any values. Any thread. Throws std::bad_alloc.
MYDIST_EXPORT Buffer TakeBuffer(size_t bytes);

}  // namespace mydist::ps
