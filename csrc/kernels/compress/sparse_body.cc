#include "kernels/compress/sparse_body.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "kernels/loop.h"

namespace mydist {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr int64_t kPair = 8;   // Bytes of an index and its value.
constexpr size_t kGroup = 32;  // Values that are looked at together.

uint32_t MagnitudeOf(float value) { return __builtin_bit_cast(uint32_t, value) & kMagnitude; }

// Writes the indices of magnitudes of at least `least`, from `begin` on, while there is room for a
// group more. Returns how many; `begin` becomes the first value that was not looked at.
MYDIST_LOOP size_t SparseFindLoop(const float* __restrict values, size_t count, uint32_t least,
                                  uint32_t* __restrict indices, size_t room, size_t* begin) {
  size_t found = 0;
  size_t at = *begin;
  for (; at + kGroup <= count && found + kGroup <= room; at += kGroup) {
    const float* __restrict x = values + at;
    // Most groups have no such value; the compiler takes several values at once to see that.
    uint32_t largest = 0;
    for (size_t i = 0; i < kGroup; ++i) {
      const uint32_t bits = __builtin_bit_cast(uint32_t, x[i]) & kMagnitude;
      largest = largest < bits ? bits : largest;
    }
    if (largest < least) continue;
    for (size_t i = 0; i < kGroup; ++i) {
      indices[found] = static_cast<uint32_t>(at + i);
      found += (__builtin_bit_cast(uint32_t, x[i]) & kMagnitude) >= least ? 1 : 0;
    }
  }
  if (at + kGroup > count) {
    for (; at < count && found < room; ++at) {
      indices[found] = static_cast<uint32_t>(at);
      found += (__builtin_bit_cast(uint32_t, values[at]) & kMagnitude) >= least ? 1 : 0;
    }
  }
  *begin = at;
  return found;
}

MYDIST_LOOP uint32_t SparseLargestLoop(const float* __restrict values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, values[i]) & kMagnitude;
    largest = largest < bits ? bits : largest;
  }
  return largest;
}

MYDIST_LOOP void SparseAddAllLoop(const float* __restrict values, float scale,
                                  float* __restrict out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] += scale * values[i];
}

// Used again: new memory costs more than the work on it.
struct Scratch {
  std::vector<uint32_t> indices;
  std::vector<uint32_t> magnitudes;
};

Scratch& ScratchOfThread() {
  thread_local Scratch scratch;
  return scratch;
}

// Writes all indices of magnitudes of at least `least` into the scratch; returns how many.
size_t Find(std::span<const float> values, uint32_t least, std::vector<uint32_t>& indices) {
  size_t found = 0;
  size_t begin = 0;
  while (begin < values.size()) {
    if (indices.size() < found + kGroup) indices.resize(std::max(found * 2, size_t{4096}));
    found += SparseFindLoop(values.data(), values.size(), least, indices.data() + found,
                            indices.size() - found, &begin);
  }
  return found;
}

// A magnitude that a little more than `kept` of the values have, as a sample tells; at least 1.
uint32_t LikelyLeast(std::span<const float> values, size_t kept, std::vector<uint32_t>& sample) {
  const size_t count = values.size();
  const size_t wanted = std::min(count, 2048 + count / 64);
  const size_t stride = count / wanted;
  sample.clear();
  for (size_t begin = 0, number = 0; begin + stride <= count; begin += stride, ++number) {
    // At no fixed distance: gradients have rows, whose columns differ.
    const size_t offset = stride == 1 ? 0 : MixKeys(number, stride) % stride;
    sample.push_back(MagnitudeOf(values[begin + offset]));
  }
  const double expected =
      static_cast<double>(kept) * static_cast<double>(sample.size()) / static_cast<double>(count);
  const auto rank = static_cast<size_t>(expected + 4 * std::sqrt(expected) + 4);
  if (rank >= sample.size()) return 1;
  const auto at = sample.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(sample.begin(), at, sample.end(), std::greater<>());
  return std::max(*at, 1u);
}

}  // namespace

int64_t SparseBytes(int64_t count, int64_t kept) { return std::min(kPair * kept, 4 * count); }

int64_t KeptOf(double ratio, int64_t count) {
  // 0.07 × 100 is a little more than 7 in floating point, and 7 is meant.
  const double exact = ratio * static_cast<double>(count) * (1 - 1e-12);
  return std::clamp(static_cast<int64_t>(std::ceil(exact)), int64_t{1}, count);
}

std::span<const uint32_t> LargestOf(std::span<const float> values, int64_t kept) {
  const auto wanted = static_cast<size_t>(kept);
  auto& [indices, magnitudes] = ScratchOfThread();
  const uint32_t likely = LikelyLeast(values, wanted, magnitudes);
  size_t found = Find(values, likely, indices);
  // The sample was not like the rest: all that are not 0, and at last those, too.
  if (found < wanted && likely > 1) found = Find(values, 1, indices);
  if (found < wanted) found = Find(values, 0, indices);

  magnitudes.resize(found);
  for (size_t i = 0; i < found; ++i) magnitudes[i] = MagnitudeOf(values[indices[i]]);
  const auto last = magnitudes.begin() + static_cast<std::ptrdiff_t>(wanted - 1);
  std::nth_element(magnitudes.begin(), last, magnitudes.end(), std::greater<>());
  const uint32_t least = *last;
  const auto larger = static_cast<size_t>(
      std::count_if(magnitudes.begin(), last, [&](uint32_t bits) { return bits > least; }));
  size_t equal = wanted - larger;  // So many of those that equal the least one.
  size_t taken = 0;
  for (size_t i = 0; i < found; ++i) {
    const uint32_t bits = MagnitudeOf(values[indices[i]]);
    const bool is_tie = bits == least && equal > 0;
    indices[taken] = indices[i];
    taken += bits > least || is_tie ? 1 : 0;
    equal -= is_tie ? 1 : 0;
  }
  return {indices.data(), taken};
}

std::span<const uint32_t> AtLeast(std::span<const float> values, float least) {
  auto& indices = ScratchOfThread().indices;
  const size_t found = Find(values, MagnitudeOf(least), indices);
  return {indices.data(), found};
}

EncodedBody WriteDense(std::span<const float> values, uint8_t* body) {
  std::memcpy(body, values.data(), values.size_bytes());
  return {.bytes = static_cast<int64_t>(values.size_bytes()),
          .is_finite = SparseLargestLoop(values.data(), values.size()) < kInfinity};
}

EncodedBody WriteSparse(std::span<const float> values, std::span<const uint32_t> indices,
                        uint8_t* body) {
  if (indices.size() * kPair >= values.size_bytes()) return WriteDense(values, body);
  if (indices.empty()) return {};
  std::memcpy(body, indices.data(), indices.size_bytes());
  auto* const sent = reinterpret_cast<float*>(body + indices.size_bytes());
  uint32_t largest = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    sent[i] = values[indices[i]];
    largest = std::max(largest, MagnitudeOf(sent[i]));
  }
  return {.bytes = static_cast<int64_t>(indices.size()) * kPair, .is_finite = largest < kInfinity};
}

EncodedBody WriteLargest(std::span<const float> values, int64_t kept, uint8_t* body) {
  if (kept * kPair >= static_cast<int64_t>(values.size_bytes())) return WriteDense(values, body);
  return WriteSparse(values, LargestOf(values, kept), body);
}

bool IsDense(std::span<const uint8_t> body, int64_t count) {
  return static_cast<int64_t>(body.size()) == 4 * count;
}

std::span<const uint32_t> IndicesOf(std::span<const uint8_t> body) {
  return {reinterpret_cast<const uint32_t*>(body.data()), body.size() / kPair};
}

Status AddSparse(std::span<const uint8_t> body, float scale, std::span<float> out) {
  const auto count = static_cast<int64_t>(out.size());
  if (IsDense(body, count)) {
    SparseAddAllLoop(reinterpret_cast<const float*>(body.data()), scale, out.data(), out.size());
    return Status::Ok();
  }
  if (body.size() % kPair != 0 || body.size() > out.size_bytes()) {
    return Status::Internal("a body of indices and values has " + std::to_string(body.size()) +
                            " bytes for " + std::to_string(count) + " values");
  }
  const std::span<const uint32_t> indices = IndicesOf(body);
  int64_t before = -1;
  for (const uint32_t index : indices) {
    if (index <= before || index >= count) {
      return Status::Internal("a body has the index " + std::to_string(index) + " of " +
                              std::to_string(count) + " values behind " + std::to_string(before));
    }
    before = index;
  }
  const auto* const sent = reinterpret_cast<const float*>(body.data() + indices.size_bytes());
  for (size_t i = 0; i < indices.size(); ++i) out[indices[i]] += scale * sent[i];
  return Status::Ok();
}

}  // namespace mydist
