// StepHistory: what the stream has made ready lately, and whether it repeats itself. Pure.
// Part of the StreamState, hence equal on all ranks at the same position. A step is the shortest
// sequence of agreements that has come several times in a row; equal means the very same agreement,
// that is, the same cache slot, not assigned again in between.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "controller/response.h"

namespace mydist {

// Tensors of one process set that execute together.
struct Bucket {
  ProcessSetId process_set = kGlobalProcessSet;
  std::vector<std::shared_ptr<const Agreement>> tensors;
};

// Equal on ranks with equal buckets, whatever the order of their process's memory.
uint64_t HashOf(const std::vector<Bucket>& buckets);

class StepHistory {
 public:
  // Entries kept, at least half of it: a longer step is never found.
  static constexpr size_t kMaxTensors = size_t{1} << 16;

  // Nothing is kept before. Steps that came fewer than `least_repeats` (2 at least) times are not
  // going to be looked for.
  void Enable(size_t least_repeats) { least_repeats_ = std::max<size_t>(least_repeats, 2); }

  void Add(const std::shared_ptr<const Agreement>& agreement);
  // The agreement never comes again: if it came fewer than `least_repeats` times, drops it and what
  // was before, which cannot be a part of a step any more. Without this a job whose shapes change
  // from step to step would fill the history with what nobody else keeps.
  void Retire(const Agreement* agreement);
  void EndBatch() { batch_begins_ = true; }
  // Something else happened: what was before does not count.
  void Reset();

  // Tensors since the last Reset.
  uint64_t tensor_count() const { return tensor_count_; }
  // How many tensors the step has that has been repeated `repeats` (>= 2) times up to now. Looks
  // only now and then, so that all the looking costs little; to be called at the end of batches.
  std::optional<size_t> FindStep(size_t repeats);

  // Whether the last `length` tensors have come `repeats` times.
  bool IsStep(size_t length, size_t repeats) const;
  // Of those `repeats` steps the one made of the fewest batches, as buckets in order: a bucket is
  // what one batch has of one process set. IsStep(length, repeats) must hold.
  std::vector<Bucket> Cut(size_t length, size_t repeats) const;

 private:
  struct Entry {
    std::shared_ptr<const Agreement> agreement;
    bool begins_batch = false;
  };

  // tensors_[tensors_.size() - 1 - i].
  const Agreement* Latest(size_t i) const {
    return tensors_[tensors_.size() - 1 - i].agreement.get();
  }
  size_t FindPeriod(size_t repeats) const;  // 0: none.

  size_t least_repeats_ = 0;  // 0: not enabled.
  std::vector<Entry> tensors_;
  bool batch_begins_ = true;
  uint64_t tensor_count_ = 0;
  uint64_t next_look_ = 0;  // At this tensor_count_.
};

}  // namespace mydist
