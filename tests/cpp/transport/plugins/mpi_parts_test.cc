// The parts of the MPI plugin that need no MPI: how it polls, whether and how long it waits for
// what a rank has sent before it left, and how it cuts transfers.
#include "transport/mpi/poll_backoff.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "transport/mpi/transfer_counts.h"
#include "transport/transport.h"

namespace mydist {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(PollBackoff, IsEagerFirstThenDoublesToTheLongest) {
  const TimePoint start{};
  PollBackoff backoff(microseconds(50), milliseconds(1));
  backoff.Reset(start);
  EXPECT_EQ(backoff.Next(start), Duration::zero());
  EXPECT_EQ(backoff.Next(start + microseconds(49)), Duration::zero());
  const TimePoint later = start + microseconds(50);
  for (const int expected_us : {20, 40, 80, 160, 320, 640, 1000, 1000}) {
    EXPECT_EQ(backoff.Next(later), microseconds(expected_us));
  }
}

TEST(PollBackoff, ResetMakesItEagerAgain) {
  TimePoint now{};
  PollBackoff backoff(microseconds(50), milliseconds(1));
  backoff.Reset(now);
  now += milliseconds(5);
  EXPECT_EQ(backoff.Next(now), microseconds(20));
  EXPECT_EQ(backoff.Next(now), microseconds(40));
  backoff.Reset(now);
  EXPECT_EQ(backoff.Next(now), Duration::zero());
  EXPECT_EQ(backoff.Next(now + microseconds(50)), microseconds(20));
}

TEST(GoodbyeGrace, WhatOneSentBeforeItLeftHasTimeToArrive) {
  const TimePoint begin = Now();
  GoodbyeGrace grace(milliseconds(500));
  EXPECT_FALSE(grace.IsOver(-1, begin)) << "nobody has left";
  EXPECT_FALSE(grace.IsOver(3, begin));
  EXPECT_FALSE(grace.IsOver(3, begin + milliseconds(499)));
  EXPECT_TRUE(grace.IsOver(3, begin + milliseconds(500)));
}

// What rank 3 sent has come in the last moment; then rank 1 leaves, which has as much time.
TEST(GoodbyeGrace, TheTimeOfOneIsNotThatOfAnother) {
  const TimePoint begin = Now();
  GoodbyeGrace grace(milliseconds(500));
  EXPECT_FALSE(grace.IsOver(3, begin));
  EXPECT_FALSE(grace.IsOver(1, begin + milliseconds(499)));
  EXPECT_FALSE(grace.IsOver(1, begin + milliseconds(998)));
  EXPECT_TRUE(grace.IsOver(1, begin + milliseconds(999)));
}

// Between a rank and its peer 1, which have moved a piece each way when it leaves.
TEST(TransferCounts, TellWhichTransfersCanStillComplete) {
  TransferCounts counts;
  counts.Resize(3);
  const TransferCounts::Told told{.sent = 1, .received = 1};
  EXPECT_TRUE(counts.MayReceive(1, told)) << "the piece is on its way";
  counts.EndReceive(1);
  EXPECT_FALSE(counts.MayReceive(1, told));
  counts.BeginSend(1);
  EXPECT_TRUE(counts.MaySend(1, told)) << "the peer has taken it, and MPI does not say so yet";
  counts.EndSend(1);
  counts.BeginSend(1);
  EXPECT_FALSE(counts.MaySend(1, told)) << "the peer has not taken the second one";
  EXPECT_EQ(counts.ToldTo(1).sent, 1U) << "the second one may never arrive";
  EXPECT_EQ(counts.ToldTo(1).received, 1U);
  EXPECT_EQ(counts.ToldTo(2).sent + counts.ToldTo(2).received, 0U);
}

TEST(TransferCounts, SurviveTheWire) {
  const std::vector<uint8_t> bytes =
      TransferCounts::Told{.sent = uint64_t{1} << 40, .received = 7}.Encode();
  const auto told = TransferCounts::Told::Decode(bytes);
  ASSERT_TRUE(told.ok()) << told.status().ToString();
  EXPECT_EQ(told->sent, uint64_t{1} << 40);
  EXPECT_EQ(told->received, 7U);
  EXPECT_EQ(TransferCounts::Told::Decode({bytes.data(), 15}).status().code(),
            StatusCode::kInternal);
}

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

using Chunks = std::vector<std::pair<int64_t, int64_t>>;

Chunks Split(int64_t bytes, int64_t chunk_bytes) {
  Chunks pieces;
  ForEachChunk(bytes, chunk_bytes,
               [&](int64_t offset, int64_t length) { pieces.emplace_back(offset, length); });
  EXPECT_EQ(static_cast<int64_t>(pieces.size()), ChunkCount(bytes, chunk_bytes));
  return pieces;
}

TEST(TransferChunks, TheLastPieceIsWhatIsLeft) {
  EXPECT_EQ(Split(0, 8), Chunks{});
  EXPECT_EQ(Split(8, 8), (Chunks{{0, 8}}));
  EXPECT_EQ(Split(9, 8), (Chunks{{0, 8}, {8, 1}}));
  EXPECT_EQ(Split(24, 8), (Chunks{{0, 8}, {8, 8}, {16, 8}}));
}

TEST(TransferChunks, CountsBeyond32Bits) {
  constexpr int64_t kGib = int64_t{1} << 30;
  EXPECT_EQ(Split(5 * kGib + 7, kGib).back(), (std::pair<int64_t, int64_t>{5 * kGib, 7}));
}

}  // namespace
}  // namespace mydist
