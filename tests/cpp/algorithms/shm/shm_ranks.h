// Ranks that share an arena: as threads of the test process, or as processes forked from it.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "base/usable_cores.h"
#include "memory/shm/arena.h"
#include "memory/shm/forked_ranks.h"
#include "transport/rank_threads.h"
#include "transport/shm_transport.h"

namespace mydist::shm {

// A directory of its own in shared memory, so that what is left behind can be seen.
class ShmDirectory {
 public:
  ShmDirectory() { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~ShmDirectory() { std::filesystem::remove_all(path()); }
  ShmDirectory(const ShmDirectory&) = delete;
  ShmDirectory& operator=(const ShmDirectory&) = delete;

  std::string path() const { return path_.data(); }
  bool IsEmpty() const { return std::filesystem::is_empty(path()); }

 private:
  std::array<char, 32> path_{"/dev/shm/mydist-test-XXXXXX"};
};

// Null after a failure.
inline std::shared_ptr<uint8_t> AllocateOrFail(
    ArenaHeap& heap, int64_t bytes,
    ArenaHeap::InForkedChild in_child = ArenaHeap::InForkedChild::kCopy) {
  auto memory = heap.Allocate(bytes, in_child);
  if (memory.ok()) return *std::move(memory);
  ADD_FAILURE() << memory.status().ToString();
  return nullptr;
}

// Ranks 0 to size - 1.
inline std::vector<int> AllOf(int size) {
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Small enough that tensors of the suites take many steps.
inline constexpr int64_t kSmallSlot = 8 << 10;

inline ArenaOptions OptionsOf(int rank, int size, const ShmDirectory& directory,
                              int64_t slot_bytes = kSmallSlot) {
  ArenaOptions options;
  options.ranks.resize(static_cast<size_t>(size));
  std::iota(options.ranks.begin(), options.ranks.end(), 0);
  options.index = rank;
  options.host = "h";
  options.directory = directory.path();
  options.slot_bytes = slot_bytes;
  options.ring_bytes = 8 << 10;
  options.zone_bytes = int64_t{64} << 20;
  options.is_crowded =
      !HaveACoreEach(std::vector(options.ranks.size(), UsableCores::OfThisThread()));
  return options;
}

inline std::unique_ptr<ShmPort> OpenPort(const ArenaOptions& options,
                                         const ArenaExchange& exchange) {
  Result<Arena::Establishment> result = Arena::Establish(options, exchange);
  if (!result.ok() || result->arena == nullptr) {
    ADD_FAILURE() << (result.ok() ? result->reason : result.status().ToString());
    return nullptr;
  }
  return std::make_unique<ShmPort>(std::move(result->arena));
}

using PortBody = std::function<void(ShmPort& port, int rank)>;

inline void OnThreadsWithPort(int size, int64_t slot_bytes, const PortBody& body,
                              std::optional<bool> attach = std::nullopt) {
  const ShmDirectory directory;
  InMemoryRendezvous rendezvous(size);
  RunAsRanks(size, [&](int rank) {
    ArenaOptions options = OptionsOf(rank, size, directory, slot_bytes);
    options.cross_memory_attach = attach;
    const auto port = OpenPort(options, rendezvous.ForRank(rank));
    if (port != nullptr) body(*port, rank);
  });
  EXPECT_TRUE(directory.IsEmpty());
}

using SeatBody = std::function<void(const ForkedRanks::Seat& seat, const ShmDirectory& directory)>;

// All of them succeed, and leave nothing.
inline void OnProcesses(int size, const SeatBody& body) {
  const ShmDirectory directory;
  ForkedRanks ranks(size, [&](const ForkedRanks::Seat& seat) { body(seat, directory); });
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.Wait(rank), 0) << "rank " << rank;
  EXPECT_TRUE(directory.IsEmpty());
}

// `body` is rank 0 of two processes, beside rank 1 that pauses, and is killed meanwhile if so
// wanted.
inline void BesideAPausedRank(bool is_killed, const std::function<void(ShmPort& port)>& body) {
  const ShmDirectory directory;
  ForkedRanks ranks(2, [&](const ForkedRanks::Seat& seat) {
    const auto port = OpenPort(OptionsOf(seat.rank, 2, directory), seat.exchange);
    ASSERT_NE(port, nullptr);
    seat.report();
    if (seat.rank == 1) pause();
    body(*port);
  });
  ranks.AwaitReports(2);
  if (is_killed) ranks.Kill(1);
  EXPECT_EQ(ranks.Wait(0), 0);
}

// As OnThreadsWithPort, in processes.
inline void OnProcessesWithPort(int size, const PortBody& body,
                                std::optional<bool> attach = std::nullopt) {
  OnProcesses(size, [&](const ForkedRanks::Seat& seat, const ShmDirectory& directory) {
    ArenaOptions options = OptionsOf(seat.rank, size, directory);
    options.cross_memory_attach = attach;
    const auto port = OpenPort(options, seat.exchange);
    ASSERT_NE(port, nullptr);
    EXPECT_TRUE(directory.IsEmpty());
    body(*port, seat.rank);
  });
}

// Tests for so many ranks and each way to private memory.
class RanksAndAttach : public ::testing::TestWithParam<std::tuple<int, std::optional<bool>>> {
 public:
  static std::string NameOf(const ::testing::TestParamInfo<ParamType>& instance) {
    const auto& [size, attach] = instance.param;
    return std::to_string(size) + "ranksAttach" + (!attach ? "Auto" : *attach ? "On" : "Off");
  }
  static auto EveryAttach() {
    return ::testing::Values(std::optional<bool>(), std::optional(true), std::optional(false));
  }

 protected:
  int size() const { return std::get<0>(GetParam()); }
  std::optional<bool> attach() const { return std::get<1>(GetParam()); }
};

}  // namespace mydist::shm
