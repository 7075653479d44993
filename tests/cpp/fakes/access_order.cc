#include "fakes/access_order.h"

#include <algorithm>
#include <iterator>

namespace mydist::testing {

int64_t VectorClock::TimeOf(int actor) const {
  const auto index = static_cast<size_t>(actor);
  return index < times_.size() ? times_[index] : 0;
}

int64_t VectorClock::Tick(int actor) {
  const auto index = static_cast<size_t>(actor);
  if (times_.size() <= index) times_.resize(index + 1, 0);
  return ++times_[index];
}

void VectorClock::Learn(const VectorClock& other) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size(), 0);
  for (size_t i = 0; i < other.times_.size(); ++i) {
    times_[i] = std::max(times_[i], other.times_[i]);
  }
}

std::optional<AccessMap::Conflict> AccessMap::Find(int64_t begin, int64_t end, Use use,
                                                   const VectorClock& clock) const {
  const auto is_over = [&](const Access& access) { return clock.Knows(access.actor, access.time); };
  for (auto cell = std::prev(cells_.upper_bound(begin)); cell != cells_.end() && cell->first < end;
       ++cell) {
    const int64_t offset = std::max(begin, cell->first);
    const auto& [write, reads] = cell->second;
    if (write && !is_over(*write)) return Conflict{*write, Use::kWrite, offset};
    if (use == Use::kRead) continue;
    for (const Access& read : reads) {
      if (!is_over(read)) return Conflict{read, Use::kRead, offset};
    }
  }
  return std::nullopt;
}

void AccessMap::Note(int64_t begin, int64_t end, Use use, const Access& access) {
  Split(begin);
  Split(end);
  const auto first = cells_.find(begin);
  const auto last = cells_.lower_bound(end);
  if (use == Use::kWrite) {
    // Whoever is ordered behind this one is so behind all that it was ordered behind.
    cells_.erase(std::next(first), last);
    first->second = {access, {}};
    return;
  }
  for (auto cell = first; cell != last; ++cell) {
    std::vector<Access>& reads = cell->second.reads;
    const auto same = std::find_if(reads.begin(), reads.end(),
                                   [&](const Access& read) { return read.actor == access.actor; });
    if (same == reads.end()) {
      reads.push_back(access);
    } else {
      *same = access;
    }
  }
}

// A cell begins at `offset` then.
void AccessMap::Split(int64_t offset) {
  if (offset >= bytes_) return;
  const auto cell = std::prev(cells_.upper_bound(offset));
  if (cell->first != offset) cells_.emplace(offset, cell->second);
}

}  // namespace mydist::testing
