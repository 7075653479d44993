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

  // This rank has completed it, and has waited so long for others in all. Costs a few stores.
  void NoteDone(const Request& last, int64_t run, int64_t wait_us = 0);
  // What other ranks say, of themselves and of others.
  void Hear(std::span<const RankProgress> told, TimePoint now);

  std::vector<RankProgress> All(TimePoint now) const;
  // What this rank has to tell when it stops: its own, and that of those it blames.
  std::vector<RankProgress> ForFarewell(std::span<const int> blamed, TimePoint now) const;
  // Its own, and as much of the others' as a datagram holds; the next time goes on behind these.
  std::vector<uint8_t> ForHeartbeat(TimePoint now);
  void HearHeartbeat(std::span<const uint8_t> news, TimePoint now);

 private:
  // Into the table, what the memory of the host says.
  void Look(TimePoint now) const;

  const int rank_;
  const int size_;
  shm::ShmPort* const shm_;
  shm::DoneLine own_{};  // Where there is no memory of the host.
  std::atomic<int64_t> wait_us_{0};
  mutable ProgressTable table_;
  size_t told_ = 0;  // Of the others, in heartbeats.
};

}  // namespace mydist
