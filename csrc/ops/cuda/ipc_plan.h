// IpcPlan: what the host works out for a launch of the allreduce between GPUs of a host: which
// kernel, what it gets and how many blocks. Pure; also run by tests.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "ops/cuda/ipc_block.h"

namespace mydist::cuda {

// visitor(T{}, parts) with the element type of the kernel and how many of them an element has.
template <typename Visitor>
auto VisitIpcElement(DataType dtype, Visitor&& visitor) {
  switch (dtype) {
    case DataType::kUint8:
      return visitor(uint8_t{}, 1);
    case DataType::kInt8:
      return visitor(int8_t{}, 1);
    case DataType::kInt16:
      return visitor(int16_t{}, 1);
    case DataType::kInt32:
      return visitor(int32_t{}, 1);
    case DataType::kInt64:
      return visitor(int64_t{}, 1);
    case DataType::kFloat16:
      return visitor(Half{}, 1);
    case DataType::kBfloat16:
      return visitor(Bfloat16{}, 1);
    case DataType::kFloat32:
      return visitor(float{}, 1);
    case DataType::kFloat64:
      return visitor(double{}, 1);
    case DataType::kBool:
      return visitor(Bool{}, 1);
    case DataType::kComplex64:
      return visitor(float{}, 2);
    case DataType::kComplex128:
      return visitor(double{}, 2);
    case DataType::kFloat8E4m3:
    case DataType::kFloat8E5m2:
      break;
  }
  CheckFailed(__FILE__, __LINE__, "the type can be reduced");
}

inline IpcLaunch IpcLaunchOf(const IpcAllreduce& job, int parts) {
  const auto is_aligned = [](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % kIpcUnitBytes == 0;
  };
  IpcLaunch launch = {.input = static_cast<const uint8_t*>(job.input),
                      .output = static_cast<uint8_t*>(job.output),
                      .count = job.count * parts,
                      .boards = {},
                      .abort_word = job.abort_word,
                      .epoch = job.epoch,
                      .rank = job.rank,
                      .size = job.size,
                      .op = job.reduction.op,
                      .in_two_shots = job.in_two_shots,
                      .is_aligned = is_aligned(job.input) && is_aligned(job.output),
                      .before = ScalingOf({.multiplier = job.reduction.prescale}),
                      .after = ScalingOf({.multiplier = job.reduction.postscale,
                                          .divisor = job.reduction.divisor})};
  std::copy(job.boards.begin(), job.boards.end(), launch.boards);
  return launch;
}

// The same on all ranks, whatever their addresses: block b meets block b. A thread has one unit of
// each slice before another block is worth its flags.
template <typename T>
uint32_t IpcBlocksOf(const IpcLaunch& launch) {
  const int slice_count = launch.in_two_shots ? launch.size : 1;
  const int64_t units = IpcUnits<T>::Count(launch.count) / slice_count;
  return static_cast<uint32_t>(
      std::clamp<int64_t>((units + kIpcThreads - 1) / kIpcThreads, 1, kMaxIpcBlocks));
}

}  // namespace mydist::cuda
