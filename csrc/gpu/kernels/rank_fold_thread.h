// FoldAsThread: what one thread of the kernel does that folds what has come from other ranks. The
// GPU runs it for all threads at once, tests on the host for one after the other.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/kernels/fold_unit.h"
#include "kernels/rank_fold.h"

namespace mydist::cuda {

inline constexpr int kFoldThreads = 256;

// A RankFold as the kernel has it; counts are of the kernel's elements.
struct FoldLaunch {
  const uint8_t* own;
  const uint8_t* others;
  uint8_t* output;
  int64_t stride;
  int64_t count;
  int32_t rank;
  bool is_own_aligned;  // To units, as those of the others are.
  bool is_output_aligned;
  FoldSteps steps;
};

inline FoldLaunch FoldLaunchOf(const RankFold& fold, int parts) {
  return {.own = static_cast<const uint8_t*>(fold.own),
          .others = static_cast<const uint8_t*>(fold.others),
          .output = static_cast<uint8_t*>(fold.output),
          .stride = fold.stride,
          .count = fold.count * parts,
          .rank = fold.rank,
          .is_own_aligned = IsUnitAligned(fold.own),
          .is_output_aligned = IsUnitAligned(fold.output),
          .steps = FoldStepsOf(fold.reduction, fold.size)};
}

// A thread has one unit, unless there are more than a launch may have threads.
template <typename T>
uint32_t FoldBlocksOf(const FoldLaunch& launch) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t units = FoldUnit<T>::Count(launch.count);
  return static_cast<uint32_t>(
      std::clamp<int64_t>((units + kFoldThreads - 1) / kFoldThreads, 1, kMost));
}

template <typename T>
MYDIST_ALWAYS_INLINE void FoldAsThread(const FoldLaunch& launch, const ThreadPlace& place) {
  using Unit = FoldUnit<T>;
  const int64_t units = Unit::Count(launch.count);
  const int64_t stride = static_cast<int64_t>(place.block_count) * kFoldThreads;
  for (int64_t unit = static_cast<int64_t>(place.block) * kFoldThreads + place.thread; unit < units;
       unit += stride) {
    const auto load = [&](int rank) {
      if (rank == launch.rank) {
        return Unit::Read(launch.own, launch.count, launch.is_own_aligned, unit);
      }
      const int64_t index = rank < launch.rank ? rank : rank - 1;
      return Unit::Read(launch.others + index * launch.stride, launch.count, true, unit);
    };
    Unit::Write(launch.output, launch.count, launch.is_output_aligned, unit,
                Unit::Fold(launch.steps, load));
  }
}

}  // namespace mydist::cuda
