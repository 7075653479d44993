// Device agreement: whether the ranks of a process set reduce over NCCL, from GPU to GPU inside a
// host, and over a transport that takes memory of GPUs. Pure: a function of what every rank says of
// itself, in the same order everywhere, so that all choose alike.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "config/config.h"

namespace mydist {

// Travels as it lies in memory: init() has made sure that all ranks run the same build. Texts end
// with a zero.
struct DeviceRecord {
  int32_t nccl_version = 0;         // 0: this rank has none.
  int32_t may_share_gpu = 0;        // NCCL has been told to allow that.
  int32_t gpu_ipc = 0;              // A GpuIpcChoice.
  int32_t takes_device_memory = 0;  // Transport::TakesDeviceMemory.
  std::array<char, 64> gpu{};
  std::array<char, 128> host{};     // What NCCL takes for one.
  std::array<char, 304> why_not{};  // Why it has none.
};
static_assert(sizeof(DeviceRecord) == 512);

struct DeviceTraits {
  int nccl_version = 0;
  bool is_asked_to_share = false;  // Which NCCL can from 2.30.3 on.
  GpuIpcChoice gpu_ipc = GpuIpcChoice::kAuto;
  bool takes_device_memory = false;
  std::string gpu;  // Device::identity.
  std::string host;
  std::string why_not;
};
// Longer texts are cut.
DeviceRecord MakeDeviceRecord(const DeviceTraits& traits);

struct NcclChoice {
  int version = 0;  // 0: not over NCCL.
  std::string why;
};

// `records[i]` is of rank `ranks[i]` of the job. At least one.
NcclChoice ChooseNccl(std::span<const DeviceRecord> records, std::span<const int> ranks);

// Whether all transports take memory of GPUs: two that differ about it could not talk.
bool ChooseDirect(std::span<const DeviceRecord> records);

struct IpcChoice {
  GpuIpcChoice use = GpuIpcChoice::kOff;  // kAuto: as far as it is measured to be faster.
  std::string why;                        // Why kOff.
};

// Whether ranks try to reach each other's GPUs. `hosts[i]` is that of records[i], as the job knows
// it.
IpcChoice ChooseIpc(std::span<const DeviceRecord> records, std::span<const int> ranks,
                    std::span<const std::string> hosts);

// Seconds that an allreduce takes from GPU to GPU, and on the path that serves else.
struct IpcTimes {
  double over_ipc = 0;
  double otherwise = 0;
};
// How many of the sizes, the smallest first, are faster from GPU to GPU, each on its slowest rank.
// times[r × size_count + s] is of rank r at size s.
size_t CountFaster(std::span<const IpcTimes> times, size_t size_count);

}  // namespace mydist
