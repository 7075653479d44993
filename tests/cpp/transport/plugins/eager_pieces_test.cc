#include "transport/mpi/poll_backoff.h"

#include <gtest/gtest.h>

#include "transport/transport.h"

namespace mydist {
namespace {

constexpr int64_t kLimit = int64_t{1} << 30;

int64_t Pieces(int64_t bytes, int64_t limit = kLimit) {
  return ChunkCount(bytes, PieceBytes(bytes, limit));
}

TEST(EagerPieces, APieceAndItsHeaderAreSentWithoutAsking) {
  constexpr int64_t kAsksBeyond = 64 << 10;  // btl_tcp_eager_limit of Open MPI.
  EXPECT_LT(PieceBytes(kAsksBeyond, kLimit), kAsksBeyond);
  EXPECT_EQ(Pieces(kAsksBeyond), 2);
}

TEST(EagerPieces, ThereAreFewOrOne) {
  EXPECT_EQ(Pieces(0), 0);
  EXPECT_EQ(Pieces(1), 1);
  EXPECT_EQ(Pieces(kEagerPieceBytes), 1);
  EXPECT_EQ(Pieces(kEagerPieceBytes + 1), 2);
  EXPECT_EQ(Pieces(kMostEagerPieces * kEagerPieceBytes), kMostEagerPieces);
  EXPECT_EQ(Pieces(kMostEagerPieces * kEagerPieceBytes + 1), 1);
  EXPECT_EQ(Pieces(kLimit + 1), 2);
}

TEST(EagerPieces, NoneIsLongerThanTheLimit) {
  for (const int64_t bytes :
       {int64_t{1}, int64_t{999}, kEagerPieceBytes, 4 * kEagerPieceBytes, kLimit}) {
    EXPECT_LE(PieceBytes(bytes, 1000), 1000) << bytes;
  }
}

}  // namespace
}  // namespace mydist
