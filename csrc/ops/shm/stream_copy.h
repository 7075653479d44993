// StreamCopy: copies into memory that a peer has read last, past the caches. To write its lines in
// the cache, each would first have to be taken away from the peer, one after the other: several
// times slower than memory. Pure; for slots and rings.
#pragma once

#include <cstdint>

namespace mydist::shm {

// Like CopyBytes. Visible to who sees a later release store.
void StreamCopy(void* output, const void* source, int64_t bytes);

}  // namespace mydist::shm
