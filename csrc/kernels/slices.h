// Slices: who owns which part of a tensor. Pure index maths, 64-bit, the same on every rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/export.h"

namespace mydist {

struct Slice {
  int64_t offset = 0;  // In elements (or bytes, or rows: whatever the caller splits).
  int64_t count = 0;

  bool operator==(const Slice&) const = default;
};

// Slice `index` of `count` elements split over `parts`: even up to one element when small. When
// every part has at least kAlignFromBytes, boundaries fall on multiples of 64 bytes from the start,
// so that no two ranks reduce into one cache line.
inline constexpr int64_t kAlignFromBytes = 4096;
Slice EvenSlice(int64_t count, int64_t element_bytes, int parts, int index);

// The part of `slice` that round `round` works on, when every round takes at most `limit` elements;
// empty when the slice is used up.
Slice RoundOf(const Slice& slice, int64_t limit, int64_t round);

// Rounds needed for the longest of `slices`.
int64_t RoundCount(std::span<const Slice> slices, int64_t limit);

// Rows each of `parts` ranks gets of a tensor with `rows` rows (reducescatter): the first
// rows % parts ranks get one more.
MYDIST_EXPORT std::vector<int64_t> ScatterRowCounts(int64_t rows, int parts);

// Sum of the counts before `index`.
int64_t OffsetOf(std::span<const int64_t> counts, int index);
int64_t Total(std::span<const int64_t> counts);

}  // namespace mydist
