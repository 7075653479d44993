// How long the pieces of a transfer over MPI are. Pure: both ends split alike.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mydist {

// Over TCP Open MPI sends up to 64 KiB at once, its header included, and asks the receiver before
// it sends more; a few pieces are there sooner. Longer ones stay whole: other networks ask earlier
// and then move all at once, and what has not been asked for piles up where a rank is late.
inline constexpr int64_t kEagerBytes = (int64_t{64} << 10) - 512;
inline constexpr int64_t kMostEagerPieces = 4;

// Of a transfer of so many bytes, each piece but the last; at most `limit`.
inline int64_t PieceBytes(int64_t bytes, int64_t limit) {
  return bytes <= kMostEagerPieces * kEagerBytes ? std::min(kEagerBytes, limit) : limit;
}

}  // namespace mydist
