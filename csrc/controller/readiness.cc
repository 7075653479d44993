#include "controller/readiness.h"

#include <iterator>

#include "base/status.h"

namespace mydist {

namespace {

void AddVariant(Readiness& merged, const Request& request, const std::vector<int32_t>& ranks) {
  for (Variant& variant : merged.variants) {
    if (!Agree(variant.request, request)) continue;
    variant.ranks.insert(variant.ranks.end(), ranks.begin(), ranks.end());
    return;
  }
  if (merged.variants.size() < kMaxVariants) {
    merged.variants.push_back({request, ranks});
  } else {
    merged.unlisted_rank_count += static_cast<int64_t>(ranks.size());
  }
}

std::vector<int64_t> MergeFirstDims(std::span<const ReadinessPart> parts) {
  std::vector<std::pair<int32_t, int64_t>> by_rank;
  for (const ReadinessPart& part : parts) {
    const Readiness* readiness = part.readiness;
    MYDIST_CHECK(readiness == nullptr || readiness->first_dims.size() == part.ranks->size());
    for (size_t i = 0; i < part.ranks->size(); ++i) {
      by_rank.emplace_back((*part.ranks)[i], readiness == nullptr ? 0 : readiness->first_dims[i]);
    }
  }
  std::sort(by_rank.begin(), by_rank.end());
  std::vector<int64_t> first_dims;
  first_dims.reserve(by_rank.size());
  for (const auto& [rank, first_dim] : by_rank) first_dims.push_back(first_dim);
  return first_dims;
}

}  // namespace

int64_t FirstDimOf(const Request& request) {
  return request.shape.rank() == 0 ? 1 : request.shape.dim(0);
}

Readiness MakeReadiness(const Request& request) {
  Readiness readiness;
  readiness.variants.push_back({RankIndependent(request), {}});
  if (GathersRows(request.op)) readiness.first_dims.push_back(FirstDimOf(request));
  return readiness;
}

Readiness MergeReadiness(std::span<const ReadinessPart> parts) {
  Readiness merged;
  for (const ReadinessPart& part : parts) {
    if (part.readiness == nullptr) continue;
    merged.unlisted_rank_count += part.readiness->unlisted_rank_count;
    for (const Variant& variant : part.readiness->variants) {
      AddVariant(merged, variant.request, part.readiness->agreed() ? part.asked : variant.ranks);
    }
  }
  MYDIST_CHECK(!merged.variants.empty());
  if (merged.agreed()) {
    merged.variants.front().ranks.clear();
    if (GathersRows(merged.request().op)) merged.first_dims = MergeFirstDims(parts);
    return merged;
  }
  for (Variant& variant : merged.variants) std::sort(variant.ranks.begin(), variant.ranks.end());
  std::sort(merged.variants.begin(), merged.variants.end(),
            [](const Variant& a, const Variant& b) { return a.ranks < b.ranks; });
  return merged;
}

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
