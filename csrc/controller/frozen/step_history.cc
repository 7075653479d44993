#include "controller/frozen/step_history.h"

#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/status.h"

namespace mydist {
namespace {

class Fnv {
 public:
  void Add(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) AddByte(static_cast<uint8_t>(value >> shift));
  }
  void Add(std::string_view text) {
    Add(text.size());
    for (const char c : text) AddByte(static_cast<uint8_t>(c));
  }
  uint64_t value() const { return hash_; }

 private:
  void AddByte(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3; }

  uint64_t hash_ = 0xcbf29ce484222325;
};

void AddAgreement(Fnv& hash, const Agreement& agreement) {
  const Request& request = agreement.request;
  hash.Add(request.name);
  hash.Add(static_cast<uint64_t>(request.op));
  hash.Add(static_cast<uint64_t>(request.dtype));
  hash.Add(static_cast<uint64_t>(request.reduce_op));
  for (int dim = 0; dim < request.shape.rank(); ++dim) {
    hash.Add(static_cast<uint64_t>(request.shape.dim(dim)));
  }
  for (const int64_t rows : agreement.first_dims) hash.Add(static_cast<uint64_t>(rows));
}

}  // namespace

uint64_t HashOf(const std::vector<Bucket>& buckets) {
  Fnv hash;
  for (const Bucket& bucket : buckets) {
    hash.Add(static_cast<uint64_t>(bucket.process_set));
    hash.Add(bucket.tensors.size());
    for (const auto& agreement : bucket.tensors) AddAgreement(hash, *agreement);
    for (const uint64_t growth : bucket.growths) hash.Add(growth);
  }
  return hash.value();
}

void StepHistory::Add(const std::shared_ptr<const Agreement>& agreement) {
  if (least_repeats_ == 0) return;
  if (tensors_.size() == kMaxTensors) {
    tensors_.erase(tensors_.begin(), tensors_.begin() + std::ptrdiff_t{kMaxTensors / 2});
  }
  const std::optional<uint64_t> number = CallNumber(agreement->request);
  Entry entry{agreement};
  if (number) entry = {Unnumbered(*agreement), *number, true};
  entry.begins_batch = std::exchange(batch_begins_, false);
  tensors_.push_back(std::move(entry));
  ++tensor_count_;
}

std::shared_ptr<const Agreement> StepHistory::Unnumbered(const Agreement& agreement) {
  Agreement common = WithCallNumber(agreement, 0);
  Fnv hash;
  AddAgreement(hash, common);
  const auto [begin, end] = unnumbered_.equal_range(hash.value());
  const auto known = std::find_if(begin, end, [&common](const auto& entry) {
    return entry.second->request == common.request && entry.second->first_dims == common.first_dims;
  });
  if (known != end) return known->second;
  if (unnumbered_.size() == kMaxUnnumbered) Reset();
  const auto added = std::make_shared<const Agreement>(std::move(common));
  unnumbered_.emplace(hash.value(), added);
  return added;
}

// Every one of the repeats that has it would have it: with fewer than those it is in no step, and
// nothing before it can be, as a step's repeats follow one another up to now.
void StepHistory::Retire(const Agreement* agreement) {
  // It is not in here, and would be looked for in vain in all of it.
  if (CallNumber(agreement->request)) return;
  const auto is_it = [agreement](const Entry& entry) { return entry.agreement.get() == agreement; };
  const auto last = std::find_if(tensors_.rbegin(), tensors_.rend(), is_it);
  if (last == tensors_.rend()) return;
  size_t count = 0;
  for (auto it = last; it != tensors_.rend() && count < least_repeats_; ++it) {
    if (is_it(*it)) ++count;
  }
  if (count < least_repeats_) tensors_.erase(tensors_.begin(), last.base());
}

void StepHistory::Reset() {
  tensors_.clear();
  unnumbered_.clear();
  batch_begins_ = true;
  tensor_count_ = 0;
  next_look_ = 0;
}

std::optional<size_t> StepHistory::FindStep(size_t repeats, size_t clear_repeats) {
  constexpr uint64_t kLeastPause = 1;
  constexpr uint64_t kPart = 8;
  constexpr uint64_t kPartOfWhatMayCome = 64;
  if (tensor_count_ < next_look_) return std::nullopt;
  const auto [length, may_come] = FindPeriod(repeats, clear_repeats);
  const uint64_t part = may_come ? kPartOfWhatMayCome : kPart;
  next_look_ = tensor_count_ + std::max<uint64_t>(kLeastPause, tensors_.size() / part);
  return length == 0 ? std::nullopt : std::optional<size_t>(length);
}

// The Z function of the history read backwards: for each distance, how far back it repeats
// (Gusfield, Algorithms on Strings, Trees, and Sequences, 1997, section 1.3).
StepHistory::Period StepHistory::FindPeriod(size_t repeats, size_t clear_repeats) const {
  bool may_come = false;
  const size_t count = tensors_.size();
  std::vector<size_t> repeated(count, 0);
  size_t left = 0;
  size_t right = 0;
  for (size_t i = 1; i * repeats <= count; ++i) {
    if (i < right) repeated[i] = std::min(right - i, repeated[i - left]);
    while (i + repeated[i] < count &&
           Latest(repeated[i]).agreement == Latest(i + repeated[i]).agreement) {
      ++repeated[i];
    }
    if (i + repeated[i] > right) {
      left = i;
      right = i + repeated[i];
    }
    if (repeated[i] < (repeats - 1) * i) continue;
    const bool is_whole = IsWhole(i, repeats);
    if (!is_whole && may_come) continue;  // Before what takes a look at all of the history.
    if (!GrowEvenly(i, repeats) || !IsAlone(i, clear_repeats * i)) continue;
    if (is_whole) return {i, false};
    may_come = true;
  }
  return {0, may_come};
}

bool StepHistory::IsWhole(size_t length, size_t repeats) const {
  for (size_t i = 0; i < length; ++i) {
    if (!Latest(i).is_numbered) return true;
  }
  for (size_t repeat = 1; repeat <= repeats; ++repeat) {
    if (!Latest(repeat * length - 1).begins_batch) return false;
  }
  return true;
}

bool StepHistory::IsAlone(size_t length, size_t count) const {
  std::unordered_set<const Agreement*> step;
  for (size_t i = 0; i < length; ++i) step.insert(Latest(i).agreement.get());
  for (size_t i = length; i < std::min(count, tensors_.size()); ++i) {
    if (!step.contains(Latest(i).agreement.get())) return false;
  }
  return true;
}

bool StepHistory::IsStep(size_t length, size_t repeats) const {
  if (length == 0 || repeats == 0 || length > tensors_.size() / repeats) return false;
  for (size_t i = 0; i < length * (repeats - 1); ++i) {
    if (Latest(i).agreement != Latest(i + length).agreement) return false;
  }
  return GrowEvenly(length, repeats);
}

bool StepHistory::GrowEvenly(size_t length, size_t repeats) const {
  for (size_t i = length; i < length * (repeats - 1); ++i) {
    if (Growth(i, length) != Growth(i % length, length)) return false;
  }
  return true;
}

std::shared_ptr<const Agreement> StepHistory::NextOf(const Entry& entry, uint64_t growth) {
  if (!entry.is_numbered) return entry.agreement;
  return std::make_shared<const Agreement>(WithCallNumber(*entry.agreement, entry.number + growth));
}

std::vector<Bucket> StepHistory::Cut(size_t length, size_t repeats) const {
  MYDIST_CHECK(repeats >= 2 && IsStep(length, repeats));
  const auto batches_from = [&](size_t begin) {
    return std::count_if(tensors_.begin() + static_cast<std::ptrdiff_t>(begin),
                         tensors_.begin() + static_cast<std::ptrdiff_t>(begin + length),
                         [](const Entry& entry) { return entry.begins_batch; });
  };
  size_t best = tensors_.size() - length;
  for (size_t repeat = 2; repeat <= repeats; ++repeat) {
    const size_t begin = tensors_.size() - repeat * length;
    if (batches_from(begin) < batches_from(best)) best = begin;
  }
  std::vector<Bucket> buckets;
  size_t first_of_batch = 0;
  for (size_t i = best; i < best + length; ++i) {
    if (tensors_[i].begins_batch) first_of_batch = buckets.size();
    const ProcessSetId set = tensors_[i].agreement->request.process_set;
    const auto found =
        std::find_if(buckets.begin() + static_cast<std::ptrdiff_t>(first_of_batch), buckets.end(),
                     [&](const Bucket& bucket) { return bucket.process_set == set; });
    Bucket& bucket = found == buckets.end() ? buckets.emplace_back() : *found;
    bucket.process_set = set;
    const size_t latest = best + length - 1 - i;  // The same tensor in the last of the repeats.
    bucket.growths.push_back(Growth(latest, length));
    bucket.tensors.push_back(NextOf(Latest(latest), bucket.growths.back()));
  }
  return buckets;
}

}  // namespace mydist
