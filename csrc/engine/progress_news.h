// ProgressNews: what each rank of the job has completed last, as this rank knows it: by the memory
// of the host, where ranks share it, by heartbeats and by farewells. Owned by the engine. NoteDone:
// the thread that drives the engine. ForHeartbeat: one thread. All else: any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "controller/messages/request.h"
#include "memory/shm/arena_layout.h"
#include "transport/shm_transport.h"
#include "world/progress.h"

namespace mydist {

class ProgressNews {
 public:
  // `shm` outlives it; null: the ranks of the host share no memory.
  ProgressNews(int rank, int size, shm::ShmPort* shm);

  // This rank has completed `last`; wait_us: its waits for others so far. Costs a few stores.
  void NoteDone(const Request& last, int64_t run, int64_t wait_us = 0);
  // Progress that another rank has sent: its own, and what it knows of others.
  void Hear(std::span<const RankProgress> told, TimePoint now);

  std::vector<RankProgress> All(TimePoint now) const;
  // The progress that a farewell carries: this rank's own, and that of the blamed ranks.
  std::vector<RankProgress> ForFarewell(std::span<const int> blamed, TimePoint now) const;
  // This rank's progress, and that of as many others as fit in; the next call has the next ones.
  std::vector<uint8_t> ForHeartbeat(TimePoint now);
  void HearHeartbeat(std::span<const uint8_t> news, TimePoint now);

 private:
  // Copies the progress in the memory of the host into the table.
  void Look(TimePoint now) const;

  const int rank_;
  const int size_;
  shm::ShmPort* const shm_;
  shm::DoneLine own_{};  // Used if the ranks of the host share no memory.
  std::atomic<int64_t> wait_us_{0};
  mutable ProgressTable table_;
  size_t told_ = 0;  // The next of the others for a heartbeat.
};

}  // namespace mydist
