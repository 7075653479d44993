// Splits one long transfer into pieces below a backend's limit. Both ends split alike, because they
// agree on the transfer's size and use the same limit.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mydist {

// Number of pieces; 0 for 0 bytes.
inline int64_t ChunkCount(int64_t bytes, int64_t chunk_bytes) {
  return bytes <= 0 ? 0 : (bytes - 1) / chunk_bytes + 1;
}

// Calls visit(offset, length) for each piece in order, all but the last `chunk_bytes` long.
template <typename Visit>
void ForEachChunk(int64_t bytes, int64_t chunk_bytes, Visit visit) {
  for (int64_t offset = 0; offset < bytes; offset += chunk_bytes) {
    visit(offset, std::min(chunk_bytes, bytes - offset));
  }
}

}  // namespace mydist
