// Farewell words: data that a rank which stops leaves to its peers. In a chain of failures every
// rank names the first rank that failed, not the rank that passed the news on.
#pragma once

#include <limits>
#include <string>

#include "base/export.h"
#include "base/status.h"

namespace mydist {

// `text` without the call that failed first, where it begins with it: "allreduce 'x': " or
// "join: ".
MYDIST_EXPORT std::string WithoutCall(const Failure& failure, const std::string& text);

// The words of a rank that stops with `error`: the first failure and, where another rank caused it,
// that rank. A carrier may cut the end off. Empty when OK.
MYDIST_EXPORT std::string FarewellWords(const Status& error);

// kPeerLost, or kTimeout when it had waited too long: "rank 2 (host h) has left the job: the disk
// is full". Blames `rank`, named `who` in the text, or the ranks that its words blame, also in
// Failure::ranks: both ends of a connection that only one of them has seen end. The signal that
// ended the one rank to blame, where the words tell it, is in Failure::signal. `words` may be
// empty. `size`: of the job; words that blame a rank outside it blame none of its ranks.
MYDIST_EXPORT Status PeerHasLeft(int rank, const std::string& who, const std::string& words,
                                 int size = std::numeric_limits<int>::max());

}  // namespace mydist
