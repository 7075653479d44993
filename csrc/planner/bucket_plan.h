// Bucket plan: which gradients are enqueued together, and how much that is. Pure.
// Called by the gradient reducer once it knows its gradients. Ranks with the same gradients and the
// same sizes get the same plan, but nothing breaks where they differ.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/export.h"

namespace mydist {

// PathCosts: what it costs to reduce something over all ranks of the job, as measured once while it
// starts. The same on all ranks. Pure data.

struct PathCosts {
  std::chrono::duration<double> latency{0};  // Of an allreduce of next to nothing, negotiated.
  double seconds_per_byte = 0;               // Of a large one.

  bool measured() const { return seconds_per_byte > 0; }
};

struct BucketSizes {
  int64_t first_bytes = 0;  // Of the first bucket; the wire should have something to do early.
  int64_t bytes = 0;        // Of the others. 0: every gradient is a bucket.
};

struct BucketLimits {
  std::optional<int64_t> wanted_bytes;  // The user's choice.
  int64_t most_bytes = 0;               // What is fused at most.
};

// sqrt(total × latency ÷ seconds per byte): the least of (total ÷ b) latencies plus the time of the
// last bucket of b bytes, which no backward hides. Kept between 256 KiB and `most_bytes`; 8 MiB
// where nothing was measured.
MYDIST_EXPORT BucketSizes ChooseBucketSizes(int64_t total_bytes, const PathCosts& costs,
                                            const BucketLimits& limits);

struct BucketMember {
  DataType dtype = DataType::kFloat32;
  int64_t bytes = 0;
  std::string_view group;  // Empty, or whose members are a bucket of their own.
};

// The buckets in the order in which they are opened, each listing indices of `members`, ascending.
// A bucket has one dtype, unless it is a group. Every index appears exactly once.
MYDIST_EXPORT std::vector<std::vector<size_t>> PlanBuckets(std::span<const BucketMember> members,
                                                           const BucketSizes& sizes);

}  // namespace mydist
