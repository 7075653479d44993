// IpcPlan: what the host works out for a launch of the allreduce between GPUs of a host: which
// kernel, what it gets and how many blocks. Pure; also run by tests.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu/kernels/ipc_block.h"

namespace mydist::cuda {

inline IpcLaunch IpcLaunchOf(const IpcAllreduce& job, int parts) {
  IpcLaunch launch = {.input = static_cast<const uint8_t*>(job.input),
                      .output = static_cast<uint8_t*>(job.output),
                      .count = job.count * parts,
                      .boards = {},
                      .abort_word = job.abort_word,
                      .epoch = job.epoch,
                      .rank = job.rank,
                      .size = job.size,
                      .in_two_shots = job.in_two_shots,
                      .is_aligned = IsUnitAligned(job.input) && IsUnitAligned(job.output),
                      .steps = FoldStepsOf(job.reduction, job.size)};
  std::copy(job.boards.begin(), job.boards.end(), launch.boards);
  return launch;
}

// The same on all ranks, whatever their addresses: block b meets block b. A thread has one unit of
// each slice before another block is worth its flags; `most` of them have room.
template <typename T>
uint32_t IpcBlocksOf(const IpcLaunch& launch, int most) {
  const int slice_count = launch.in_two_shots ? launch.size : 1;
  const int64_t units = FoldUnit<T>::Count(launch.count) / slice_count;
  return static_cast<uint32_t>(
      std::clamp<int64_t>((units + kIpcThreads - 1) / kIpcThreads, 1, most));
}

}  // namespace mydist::cuda
