#include "torch/gradients/gradient_buckets.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace mydist {

void GradientBuckets::Add(std::vector<std::vector<size_t>> buckets) {
  for (std::vector<size_t>& members : buckets) {
    for (const size_t parameter : members) {
      bucket_of_.resize(std::max(bucket_of_.size(), parameter + 1));
      bucket_of_[parameter] = buckets_.size();
    }
    buckets_.push_back({.members = std::move(members), .is_open = false, .awaited = {}});
  }
}

bool GradientBuckets::Has(size_t parameter) const {
  return parameter < bucket_of_.size() && bucket_of_[parameter].has_value();
}

std::optional<size_t> GradientBuckets::Ready(size_t parameter,
                                             const std::function<bool(size_t)>& is_expected) {
  const size_t number = *bucket_of_[parameter];
  Bucket& bucket = buckets_[number];
  const bool was_open = std::exchange(bucket.is_open, true);
  if (!was_open) {
    std::copy_if(bucket.members.begin(), bucket.members.end(), std::back_inserter(bucket.awaited),
                 is_expected);
  } else if (bucket.awaited.empty()) {
    return number;
  }
  std::erase(bucket.awaited, parameter);
  if (!bucket.awaited.empty()) return std::nullopt;
  ++due_count_;
  return number;
}

void GradientBuckets::NextStep() {
  due_count_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.is_open = false;
    bucket.awaited.clear();
  }
}

void GradientBuckets::Clear() {
  buckets_.clear();
  bucket_of_.clear();
  due_count_ = 0;
}

}  // namespace mydist
