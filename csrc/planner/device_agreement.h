// Device agreement: whether the ranks of a process set reduce over NCCL. Pure: a function of what
// every rank says of itself, in the same order everywhere, so that all choose alike.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace mydist {

// Travels as it lies in memory: init() has made sure that all ranks run the same build. Texts end
// with a zero.
struct DeviceRecord {
  int32_t nccl_version = 0;   // 0: this rank has none.
  int32_t may_share_gpu = 0;  // NCCL has been told to allow that.
  std::array<char, 64> gpu{};
  std::array<char, 128> host{};     // What NCCL takes for one.
  std::array<char, 312> why_not{};  // Why it has none.
};
static_assert(sizeof(DeviceRecord) == 512);

struct DeviceTraits {
  int nccl_version = 0;
  bool is_asked_to_share = false;  // Which NCCL can from 2.30.3 on.
  std::string gpu;                 // Device::identity.
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

}  // namespace mydist
