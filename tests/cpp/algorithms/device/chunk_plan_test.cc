// Where tensors are cut on their way over the host.
#include "algorithms/device/staging_pipeline.h"

#include <gtest/gtest.h>

#include <vector>

namespace mydist {
namespace {

constexpr StagingLimits kLimits{
    .least_chunk_bytes = 100, .most_chunk_bytes = 400, .chunks_in_flight = 4};

TEST(ChunkPlan, TakesAsManyChunksAsThereMayBeInFlight) {
  EXPECT_EQ(ChunkCount(0, kLimits), 0);
  EXPECT_EQ(ChunkCount(1, kLimits), 1);
  EXPECT_EQ(ChunkCount(199, kLimits), 1);
  EXPECT_EQ(ChunkCount(200, kLimits), 2);
  EXPECT_EQ(ChunkCount(400, kLimits), 4);
  EXPECT_EQ(ChunkCount(1600, kLimits), 4);
  EXPECT_EQ(ChunkCount(1601, kLimits), 5);
  EXPECT_EQ(ChunkCount(int64_t{400} << 20, kLimits), 1 << 20);
}

TEST(ChunkPlan, KeepsFourChunksInFlightFromFourMegabytesOn) {
  EXPECT_EQ(ChunkCount(int64_t{4} << 20, StagingLimits{}), 4);
  EXPECT_EQ(ChunkCount(int64_t{64} << 20, StagingLimits{}), 16);
  EXPECT_GE(StagingLimits{}.chunks_in_flight, 4);
}

// All pieces of a part, over the chunks, are the part; within a chunk they are packed.
TEST(ChunkPlan, CutsEveryPartOnce) {
  const std::vector<int64_t> counts = {0, 1, 7, 20011, 3, 0};
  for (const int chunk_count : {1, 2, 5, 64}) {
    std::vector<int64_t> cut(counts.size(), 0);
    int64_t largest = 0;
    for (int chunk = 0; chunk < chunk_count; ++chunk) {
      std::vector<ChunkPiece> pieces;
      CutParts(counts, 4, chunk_count, chunk, pieces);
      ASSERT_EQ(pieces.size(), counts.size());
      int64_t part_begin = 0;
      int64_t staged = 0;
      for (size_t rank = 0; rank < counts.size(); ++rank) {
        EXPECT_EQ(pieces[rank].rank, static_cast<int>(rank));
        EXPECT_EQ(pieces[rank].part_offset, cut[rank]);
        EXPECT_EQ(pieces[rank].tensor_offset, part_begin + cut[rank]);
        EXPECT_EQ(pieces[rank].staged_offset, staged);
        cut[rank] += pieces[rank].count;
        staged += pieces[rank].count;
        part_begin += counts[rank];
      }
      if (chunk == 0) largest = staged;
      EXPECT_LE(staged, largest);
    }
    EXPECT_EQ(cut, counts);
  }
}

TEST(ChunkPlan, GroupsTensorsWithoutCuttingThem) {
  const std::vector<int64_t> counts = {10, 10, 0, 50, 1, 1, 0};
  std::vector<TensorGroup> groups;
  GroupTensors(counts, 4, 80, groups);
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].tensor_count, 2U);
  EXPECT_EQ(groups[0].elements, (Slice{0, 20}));
  EXPECT_EQ(groups[1].first, 2U);
  EXPECT_EQ(groups[1].elements, (Slice{20, 50}));
  EXPECT_EQ(groups[2].first, 4U);
  EXPECT_EQ(groups[2].tensor_count, 3U);
  EXPECT_EQ(groups[2].elements, (Slice{70, 2}));
}

}  // namespace
}  // namespace mydist
