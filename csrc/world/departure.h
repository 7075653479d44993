// What a rank that stops leaves to those that still need it, as data: its words. In a chain of
// failures each names the rank that left with an error of its own, not the one it heard it from.
#pragma once

#include <string>

#include "base/export.h"
#include "base/status.h"

namespace mydist {

// What a rank that stops with `error` leaves to the others: a record of what went wrong first and,
// where that was another rank, which. Whoever carries it may cut its end off. Empty when OK.
MYDIST_EXPORT std::string FarewellWords(const Status& error);

// kPeerLost, or kTimeout when it had waited too long: "rank 2 (host h) has left the job: the disk
// is full". Blames `rank`, called `who`, or those that its words blame, in the text and in
// Failure::ranks: both ends of a connection that only one of them has seen end. `words` may be
// empty, when it left none.
MYDIST_EXPORT Status PeerHasLeft(int rank, const std::string& who, const std::string& words);

}  // namespace mydist
