// What is said of a rank that has left the job while others still need it, and what it says itself.
// In a chain of failures each names the rank that left with an error of its own, not the one it
// heard it from.
#pragma once

#include <string>

#include "base/export.h"
#include "base/status.h"

namespace mydist {

// What a rank that stops with `error` leaves to the others: what went wrong first, and, marked as
// such, on which rank, where that was another one. One text for all that carry it, which may cut
// its end off; empty when OK. Only the two below read it.
MYDIST_EXPORT std::string FarewellWords(const Status& error);

// "rank 2 (host h) has left the job: the disk is full", naming `who`, or the rank that `words` do.
MYDIST_EXPORT std::string DepartureText(const std::string& who, const std::string& words);

// kPeerLost with that text; `words` may be empty, when that rank left none.
MYDIST_EXPORT Status PeerHasLeft(const std::string& who, const std::string& words);

}  // namespace mydist
