#include "controller/participation.h"

#include <algorithm>
#include <iterator>

namespace mydist {

void Participation::Join(int32_t rank) {
  if (std::binary_search(vertex_.members.begin(), vertex_.members.end(), rank)) {
    joined_.insert(rank);
  }
}

bool Participation::Awaits(size_t lane) const {
  if (joined_.empty()) return true;
  const std::vector<int32_t>& ranks = vertex_.lanes[lane].ranks;
  return !std::includes(joined_.begin(), joined_.end(), ranks.begin(), ranks.end());
}

std::vector<int32_t> Participation::Awaited(size_t lane, const Request& request) const {
  const std::vector<int32_t>& ranks = vertex_.lanes[lane].ranks;
  std::vector<int32_t> awaited;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(awaited),
               [&](int32_t rank) { return Counts(request, rank); });
  return awaited;
}

bool Participation::Awaits(size_t lane, const Request& request) const {
  const std::vector<int32_t>& ranks = vertex_.lanes[lane].ranks;
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int32_t rank) { return Counts(request, rank); });
}

}  // namespace mydist
