#include "transport/transport.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace mydist {
namespace {

using Chunks = std::vector<std::pair<int64_t, int64_t>>;

Chunks Split(int64_t bytes, int64_t chunk_bytes) {
  Chunks pieces;
  ForEachChunk(bytes, chunk_bytes,
               [&](int64_t offset, int64_t length) { pieces.emplace_back(offset, length); });
  EXPECT_EQ(static_cast<int64_t>(pieces.size()), ChunkCount(bytes, chunk_bytes));
  return pieces;
}

TEST(TransferChunks, NothingForNothing) { EXPECT_EQ(Split(0, 8), Chunks{}); }

TEST(TransferChunks, OnePieceUpToTheLimit) {
  EXPECT_EQ(Split(1, 8), (Chunks{{0, 1}}));
  EXPECT_EQ(Split(8, 8), (Chunks{{0, 8}}));
}

TEST(TransferChunks, TheLastPieceIsWhatIsLeft) {
  EXPECT_EQ(Split(9, 8), (Chunks{{0, 8}, {8, 1}}));
  EXPECT_EQ(Split(24, 8), (Chunks{{0, 8}, {8, 8}, {16, 8}}));
}

TEST(TransferChunks, CountsBeyond32Bits) {
  constexpr int64_t kGib = int64_t{1} << 30;
  EXPECT_EQ(Split(5 * kGib + 7, kGib).back(), (std::pair<int64_t, int64_t>{5 * kGib, 7}));
}

}  // namespace
}  // namespace mydist
