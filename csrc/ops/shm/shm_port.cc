#include "ops/shm/shm_port.h"

#include <algorithm>

namespace mydist::shm {

ShmPort::ShmPort(std::unique_ptr<Arena> arena)
    : arena_(std::move(arena)),
      waiter_(arena_.get()),
      transport_(arena_.get(), &waiter_),
      steps_(arena_.get(), &waiter_) {}

ShmPort::~ShmPort() = default;

std::optional<std::vector<int>> ShmPort::IndicesOf(const std::vector<int>& ranks) const {
  const std::vector<int>& here = arena_->ranks();
  std::vector<int> indices;
  for (const int rank : ranks) {
    const auto it = std::lower_bound(here.begin(), here.end(), rank);
    if (it == here.end() || *it != rank) return std::nullopt;
    indices.push_back(static_cast<int>(it - here.begin()));
  }
  return indices;
}

std::string ShmPort::Description() const {
  if (arena_->heap() != nullptr) return "tensors in shared memory are reduced where they lie";
  return "no tensors lie in shared memory: " + arena_->heap_refusal();
}

}  // namespace mydist::shm
