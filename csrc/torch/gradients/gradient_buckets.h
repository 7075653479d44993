// GradientBuckets: which parameters are enqueued together, and when a bucket is due: as soon as
// every member that is expected to get a gradient in this step has it. Parameters are numbers here.
// Owned by the GradientReducer, which calls it with the GIL held. Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace mydist {

class GradientBuckets {
 public:
  // More buckets, behind those there are; no parameter twice.
  void Add(std::vector<std::vector<size_t>> buckets);

  bool Has(size_t parameter) const;
  size_t count() const { return buckets_.size(); }
  std::span<const size_t> Members(size_t bucket) const { return buckets_[bucket].members; }

  // The parameter, which has a bucket, has its gradient. Gives that bucket when it is due, and
  // every time after that: what comes unexpected must not wait for the end of the step.
  // `is_expected` is asked for all members once per step.
  std::optional<size_t> Ready(size_t parameter,
                              const std::function<bool(size_t parameter)>& is_expected);
  // Whether all buckets were due in this step.
  bool AllDue() const { return due_count_ == buckets_.size(); }

  void NextStep();
  void Clear();

 private:
  struct Bucket {
    std::vector<size_t> members;
    bool is_open = false;
    std::vector<size_t> awaited;  // Of the members, once it is open.
  };

  std::vector<Bucket> buckets_;
  std::vector<std::optional<size_t>> bucket_of_;  // By parameter.
  size_t due_count_ = 0;
};

}  // namespace mydist
