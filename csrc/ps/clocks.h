// Clocks: how many pushes of each worker a piece has received, and which workers push no more.
// Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace mydist::ps {

class Clocks {
 public:
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

  explicit Clocks(int workers)
      : pushes_(static_cast<size_t>(workers)), ends_(static_cast<size_t>(workers)) {}

  int workers() const { return static_cast<int>(pushes_.size()); }
  // Pushes that have been received.
  int64_t Of(int worker) const { return pushes_[static_cast<size_t>(worker)]; }
  // One more; the number of the clock that it belongs to, from 0.
  int64_t Push(int worker) { return pushes_[static_cast<size_t>(worker)]++; }

  // The worker goes on from there when it is behind.
  void CatchUp(int worker, int64_t clock) {
    int64_t& own = pushes_[static_cast<size_t>(worker)];
    if (own < clock) own = clock;
  }

  void Finish(int worker) { ends_[static_cast<size_t>(worker)] = true; }
  // It pushes again, from the highest clock of all on.
  void Resume(int worker) {
    ends_[static_cast<size_t>(worker)] = false;
    pushes_[static_cast<size_t>(worker)] = *std::max_element(pushes_.begin(), pushes_.end());
  }
  bool HasFinished(int worker) const { return ends_[static_cast<size_t>(worker)]; }

  // Of the workers that have not finished; kForever when there is none.
  int64_t Lowest() const {
    int64_t lowest = kForever;
    for (size_t i = 0; i < pushes_.size(); ++i) {
      if (!ends_[i] && pushes_[i] < lowest) lowest = pushes_[i];
    }
    return lowest;
  }
  // The first worker that stands there; -1: none.
  int Slowest() const {
    const int64_t lowest = Lowest();
    for (size_t i = 0; i < pushes_.size(); ++i) {
      if (!ends_[i] && pushes_[i] == lowest) return static_cast<int>(i);
    }
    return -1;
  }

 private:
  std::vector<int64_t> pushes_;
  std::vector<bool> ends_;
};

}  // namespace mydist::ps
