#include <algorithm>

#include "kernels/element.h"
#include "kernels/simd/simd_path.h"

namespace mydist {

namespace {

constexpr int64_t kLineBytes = 64;

}  // namespace

Slice EvenSlice(int64_t count, int64_t element_bytes, int parts, int index) {
  // Element sizes are powers of two up to 16, so a line holds a whole number of them.
  const int64_t unit =
      count / parts >= kAlignFromBytes / element_bytes ? kLineBytes / element_bytes : 1;
  const int64_t units = (count + unit - 1) / unit;
  const int64_t share = units / parts;
  const int64_t extra = units % parts;
  const auto start = [&](int64_t i) {
    return std::min(count, (i * share + std::min(i, extra)) * unit);
  };
  const int64_t offset = start(index);
  return {offset, start(int64_t{index} + 1) - offset};
}

Slice RoundOf(const Slice& slice, int64_t limit, int64_t round) {
  const int64_t begin = std::min(slice.count, round * limit);
  return {slice.offset + begin, std::min(limit, slice.count - begin)};
}

void SplitByCounts(std::span<const int64_t> counts, std::vector<Slice>& slices) {
  slices.clear();
  int64_t offset = 0;
  for (const int64_t count : counts) {
    slices.push_back({offset, count});
    offset += count;
  }
}

int64_t RoundCount(std::span<const Slice> slices, int64_t limit) {
  int64_t longest = 0;
  for (const Slice& slice : slices) longest = std::max(longest, slice.count);
  return longest / limit + (longest % limit != 0 ? 1 : 0);
}

std::vector<int64_t> ScatterRowCounts(int64_t rows, int parts) {
  std::vector<int64_t> counts(static_cast<size_t>(parts), rows / parts);
  for (int64_t part = 0; part < rows % parts; ++part) ++counts[static_cast<size_t>(part)];
  return counts;
}

int64_t OffsetOf(std::span<const int64_t> counts, int index) {
  return Total(counts.first(static_cast<size_t>(index)));
}

int64_t Total(std::span<const int64_t> counts) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  return total;
}

void WidenHalf(const uint16_t* source, float* output, int64_t count) {
  simd::CurrentKernels().widen_half(source, output, count);
}

void NarrowHalf(const float* source, uint16_t* output, int64_t count) {
  simd::CurrentKernels().narrow_half(source, output, count);
}

void WidenBfloat16(const uint16_t* source, float* output, int64_t count) {
  simd::CurrentKernels().widen_bfloat16(source, output, count);
}

void NarrowBfloat16(const float* source, uint16_t* output, int64_t count) {
  simd::CurrentKernels().narrow_bfloat16(source, output, count);
}

}  // namespace mydist
