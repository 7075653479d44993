// What a peer may still write to the memory of a collective that has failed here: one of this host
// that is stopped and goes on later, or a message that MPI cannot take back. It must not go to
// memory that has another owner by then. Thread-safe; concerns the whole process.
#pragma once

#include <cstdint>
#include <memory>

#include "base/export.h"

namespace mydist {

// There is such a peer, of a collective that has just failed.
MYDIST_EXPORT void ExpectLateWrites();

// Of `memory`, which a collective that has failed has used: it is never freed if late writes are
// to be expected; else nothing happens. May be null.
MYDIST_EXPORT void KeepFromLateWrites(std::shared_ptr<void> memory);

// `memory`, for collectives to use from now on: once it is out of use it is freed, but not if
// late writes have come to be expected since. May be null.
MYDIST_EXPORT std::shared_ptr<uint8_t> GuardFromLateWrites(std::shared_ptr<uint8_t> memory);

}  // namespace mydist
