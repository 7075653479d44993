// StepHistory: what the stream has made ready lately, and whether it repeats itself. Pure.
// Part of the StreamState, hence equal on all ranks at the same position. A step is the shortest
// sequence of agreements that has come several times in a row; equal means the very same agreement,
// that is, the same cache slot, not assigned again in between. Or, of calls without a name, one
// that differs in its number only, by as much from each step to the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "controller/messages/response.h"

namespace mydist {

// Tensors of one process set that execute together.
struct Bucket {
  ProcessSetId process_set = kGlobalProcessSet;
  std::vector<std::shared_ptr<const Agreement>> tensors;
  // By tensor: what its call number grows by with each step. 0: it stays, or there is none.
  std::vector<uint64_t> growths;
};

// Equal on ranks with equal buckets, whatever the order of their process's memory.
uint64_t HashOf(const std::vector<Bucket>& buckets);

class StepHistory {
 public:
  // Entries kept, at least half of it: a longer step is never found.
  static constexpr size_t kMaxTensors = size_t{1} << 16;
  // Calls without a name that differ in more than their number. With more the count begins anew.
  static constexpr size_t kMaxUnnumbered = 1024;

  // Nothing is kept before. Steps that came fewer than `least_repeats` (2 at least) times are not
  // going to be looked for.
  void Enable(size_t least_repeats) { least_repeats_ = std::max<size_t>(least_repeats, 2); }

  void Add(const std::shared_ptr<const Agreement>& agreement);
  // The agreement never comes again: if it came fewer than `least_repeats` times, drops it and what
  // was before, which cannot be a part of a step any more. Without this a job whose shapes change
  // from step to step would fill the history with what no other rank keeps.
  void Retire(const Agreement* agreement);
  void EndBatch() { batch_begins_ = true; }
  // Something else happened: what was before does not count.
  void Reset();

  // Tensors since the last Reset.
  uint64_t tensor_count() const { return tensor_count_; }
  // How many tensors the step has that has come `repeats` (>= 2) times up to now, while for
  // `clear_repeats` times its length nothing came but its tensors: a run of equal calls within a
  // step is none. One of calls without a name only begins with a batch each time: of those that are
  // in flight together, which names cannot be, one alone is none, either. Looks only now and then,
  // so that all the looking costs little; to be called at the end of batches.
  std::optional<size_t> FindStep(size_t repeats, size_t clear_repeats);

  // Whether the last `length` tensors have come `repeats` times.
  bool IsStep(size_t length, size_t repeats) const;
  // Of those `repeats` steps the one made of the fewest batches, as buckets in order: a bucket is
  // what one batch has of one process set. Numbers are those of the step to come. IsStep(length,
  // repeats) must hold, and `repeats` be 2 at least.
  std::vector<Bucket> Cut(size_t length, size_t repeats) const;

 private:
  struct Entry {
    std::shared_ptr<const Agreement> agreement;  // `is_numbered`: as if its number were 0.
    uint64_t number = 0;
    bool is_numbered = false;
    bool begins_batch = false;
  };

  const Entry& Latest(size_t i) const { return tensors_[tensors_.size() - 1 - i]; }
  // By how much the number of Latest(i) is above that of Latest(i + length), modulo 2^64.
  uint64_t Growth(size_t i, size_t length) const {
    return Latest(i).number - Latest(i + length).number;
  }
  // Of the last `length` tensors, which have come `repeats` times but for their numbers.
  bool GrowEvenly(size_t length, size_t repeats) const;
  std::shared_ptr<const Agreement> Unnumbered(const Agreement& agreement);
  static std::shared_ptr<const Agreement> NextOf(const Entry& entry, uint64_t growth);
  // Whether the last `count` tensors, or all there are, are those of the last `length`.
  bool IsAlone(size_t length, size_t count) const;
  struct Period {
    size_t length = 0;      // 0: none.
    bool may_come = false;  // There would be one, if it began with a batch each time.
  };
  // Whether the last `length` tensors may be a step as far as batches go.
  bool IsWhole(size_t length, size_t repeats) const;
  Period FindPeriod(size_t repeats, size_t clear_repeats) const;

  size_t least_repeats_ = 0;  // 0: not enabled.
  std::vector<Entry> tensors_;
  // What calls with a number have in common, by its hash.
  std::unordered_multimap<uint64_t, std::shared_ptr<const Agreement>> unnumbered_;
  bool batch_begins_ = true;
  uint64_t tensor_count_ = 0;
  uint64_t next_look_ = 0;  // At this tensor_count_.
};

}  // namespace mydist
