// StreamCopy: copies past the caches, into memory that a peer has read last or that is too large to
// be in them. To write its lines in the cache, each would have to be taken away from the peer, one
// after the other, several times slower than memory; or be read from memory, for nothing.
// Pure; for slots, rings and gradients.
#pragma once

#include <cstdint>

#include "base/export.h"

namespace mydist::shm {

// Like CopyBytes. Visible to a thread that sees a later release store.
MYDIST_EXPORT void StreamCopy(void* output, const void* source, int64_t bytes);

}  // namespace mydist::shm
