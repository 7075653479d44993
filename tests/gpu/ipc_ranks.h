// GpuProcesses: ranks of one host as forked processes, each with a GPU and an IpcLink to the
// others. The test itself never touches CUDA, which does not survive a fork.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/device/ipc_connect.h"
#include "algorithms/rank_ordered_collectives.h"
#include "base/fixed_text.h"
#include "gpu/cuda_device.h"
#include "gpu/cuda_driver.h"
#include "memory/shm/forked_ranks.h"

namespace mydist::testing {

// What processes tell the test before they end.
struct GpuAnswers {
  int gpu_count = 0;
  std::array<char, 400> why_not{};  // Without GPUs, or without a link.

  static GpuAnswers* Shared() {
    void* memory = mmap(nullptr, sizeof(GpuAnswers), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (memory) GpuAnswers;  // As long as the test's process.
  }
  void Say(const std::string& why) { PutText(why, why_not); }
};

// Allgathers of a few bytes, the same from every rank, and nothing else.
class ForkedTransport final : public Transport {
 public:
  ForkedTransport(const shm::ForkedRanks::Seat& seat, int size) : seat_(seat), size_(size) {}

  int rank() const override { return seat_.rank; }
  int size() const override { return size_; }
  Status Exchange(std::span<const SendTransfer> sends,
                  std::span<const ReceiveTransfer> receives) override {
    const auto* data = static_cast<const uint8_t*>(sends.front().data);
    MYDIST_ASSIGN_OR_RETURN(const auto all, seat_.exchange({data, data + sends.front().bytes}));
    for (const ReceiveTransfer& receive : receives) {
      std::memcpy(receive.data, all[static_cast<size_t>(receive.peer)].data(),
                  static_cast<size_t>(receive.bytes));
    }
    return Status::Ok();
  }

 private:
  const shm::ForkedRanks::Seat& seat_;
  const int size_;
};

struct GpuRank {
  int rank;
  int size;
  cuda::CudaDevice& device;
  StreamHandle stream;
  std::shared_ptr<IpcLink> link;
};

// Asks in a process of its own.
inline void CountGpus(GpuAnswers* answers) {
  shm::ForkedRanks asker(1, [answers](const auto&) {
    const Result<int> count = cuda::CountDevices();
    answers->gpu_count = count.ok() ? *count : 0;
    answers->Say(count.ok() ? "" : count.status().message());
  });
  asker.Wait(0);
}

// `body` runs on ranks whose GPUs have the indices `gpus`; on none of them when there is no link.
// True: all went well, or no link, which the answers say.
inline bool RunOnGpus(const std::vector<int>& gpus, GpuAnswers* answers,
                      const std::function<void(const GpuRank&)>& body) {
  const int size = static_cast<int>(gpus.size());
  shm::ForkedRanks ranks(size, [&](const shm::ForkedRanks::Seat& seat) {
    auto opened = cuda::CudaDevice::Open(gpus[static_cast<size_t>(seat.rank)]);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    cuda::CudaDevice& device = **opened;
    const Result<StreamHandle> stream = device.CreateStream();
    ASSERT_TRUE(stream.ok()) << stream.status().ToString();
    ForkedTransport transport(seat, size);
    RankOrderedCollectives exchange(&transport);
    Result<IpcConnection> connection = ConnectIpc({.seat = {.device = &device, .stream = *stream},
                                                   .rank = seat.rank,
                                                   .size = size,
                                                   .name = "the test's ranks",
                                                   .exchange = &exchange},
                                                  true);
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    if (connection->link == nullptr) {
      if (seat.rank == 0) answers->Say(connection->why_not);
      return;
    }
    body({seat.rank, size, device, *stream, std::move(connection->link)});
  });
  bool all_well = true;
  for (int rank = 0; rank < size; ++rank) all_well = ranks.Wait(rank) == 0 && all_well;
  return all_well;
}

}  // namespace mydist::testing
