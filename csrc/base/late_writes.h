// What a peer of this host may write, once it goes on, to the tensors of a collective that has
// failed here: one that is stopped is not waited for without end, and what it writes must not go to
// memory that is somebody else's by then. Thread-safe; concerns the whole process, for as long as
// it lives.
#pragma once

#include <memory>

#include "base/export.h"

namespace mydist {

// There is such a peer.
MYDIST_EXPORT void ExpectLateWrites();

// Of `memory`, which a collective that has failed has used: it is never freed if late writes are
// to be expected; else nothing happens. May be null.
MYDIST_EXPORT void KeepFromLateWrites(std::shared_ptr<void> memory);

}  // namespace mydist
