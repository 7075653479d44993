// ChunkPlan: into how many chunks a tensor on a device is cut on its way over the host, and where.
// Pure index maths, the same on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/slices.h"

namespace mydist {

// Must be equal on all ranks. Results do not depend on it.
struct StagingLimits {
  // Smaller chunks would cost the network more in messages than the overlap saves.
  int64_t least_chunk_bytes = int64_t{1} << 20;
  // Host memory held is at most this times chunks_in_flight (a tensor that has to be seen whole,
  // see StagedCollectives, may need more).
  int64_t most_chunk_bytes = int64_t{4} << 20;
  // Of one tensor: on their way to the host, over the network, or on their way back.
  int chunks_in_flight = 8;
};

// Chunks of about equal size for `bytes`, 0 for nothing: as many as there may be in flight, fewer
// where they would be too small, more where they would be too large.
int ChunkCount(int64_t bytes, const StagingLimits& limits);

// What chunk number `chunk` of `chunk_count` has of the part of one rank, when every rank's part is
// cut into as many.
struct ChunkPiece {
  int rank = 0;
  int64_t tensor_offset = 0;  // In elements, from the begin of all parts.
  int64_t part_offset = 0;    // From the begin of the rank's part.
  int64_t staged_offset = 0;  // From the begin of the chunk, where pieces lie one after the other.
  int64_t count = 0;
};

// One for each of `counts`, in their order. Chunk 0 is the largest.
void CutParts(std::span<const int64_t> counts, int64_t element_bytes, int chunk_count, int chunk,
              std::vector<ChunkPiece>& pieces);

// Tensors that travel together because none of them may be cut.
struct TensorGroup {
  size_t first = 0;
  size_t tensor_count = 0;
  Slice elements;
};

// All of `counts`, in groups of at least `group_bytes` as long as there are so many.
void GroupTensors(std::span<const int64_t> counts, int64_t element_bytes, int64_t group_bytes,
                  std::vector<TensorGroup>& groups);

}  // namespace mydist
