#include "kernels/compress/sparse_body.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/compress/magnitudes.h"
#include "kernels/loop.h"

namespace mydist {
namespace {

constexpr int64_t kPair = 8;     // Bytes of an index and its value.
constexpr size_t kPiece = 4096;  // Values that are made at once.
constexpr size_t kGroup = 32;    // Values that are looked at together.
constexpr size_t kRun = 8;       // Values of a sample that lie side by side.

uint32_t MagnitudeOf(float value) { return __builtin_bit_cast(uint32_t, value) & kMagnitude; }

// Writes the indices of magnitudes of at least `least`; returns how many. `indices` has room for
// one each.
MYDIST_LOOP size_t SparseFindLoop(const float* __restrict values, size_t count, uint32_t least,
                                  uint32_t* __restrict indices) {
  size_t found = 0;
  size_t at = 0;
  for (; at + kGroup <= count; at += kGroup) {
    const float* __restrict x = values + at;
    // Most groups have no such value; the compiler takes several values at once to see that.
    if (LargestMagnitude(x, kGroup) < least) continue;
    for (size_t i = 0; i < kGroup; ++i) {
      indices[found] = static_cast<uint32_t>(at + i);
      found += (__builtin_bit_cast(uint32_t, x[i]) & kMagnitude) >= least ? 1 : 0;
    }
  }
  for (; at < count; ++at) {
    indices[found] = static_cast<uint32_t>(at);
    found += (__builtin_bit_cast(uint32_t, values[at]) & kMagnitude) >= least ? 1 : 0;
  }
  return found;
}

MYDIST_LOOP uint32_t SparseLargestLoop(const float* __restrict values, size_t count) {
  return LargestMagnitude(values, count);
}

MYDIST_LOOP void SparseAddAllLoop(const float* __restrict values, float scale,
                                  float* __restrict out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] += scale * values[i];
}

}  // namespace

int64_t SparseBytes(int64_t count, int64_t kept) { return std::min(kPair * kept, 4 * count); }

int64_t KeptOf(double ratio, int64_t count) {
  // 0.07 × 100 is a little more than 7 in floating point, and 7 is meant.
  const double exact = ratio * static_cast<double>(count) * (1 - 1e-12);
  return std::clamp(static_cast<int64_t>(std::ceil(exact)), int64_t{1}, count);
}

// Used again: new memory costs more than the work on it.
struct SparseCodec::Found {
  std::vector<uint32_t> indices;
  std::vector<float> values;
  size_t count = 0;                  // Of both.
  std::vector<uint32_t> magnitudes;  // Of these, or of a sample.
  std::vector<float> piece = std::vector<float>(kPiece);
};

SparseCodec::Found& SparseCodec::MemoryOfThread() {
  thread_local Found found;
  return found;
}

void SparseCodec::Source::Read(size_t begin, std::span<float> out) const {
  const std::span<const float> from = values.subspan(begin, out.size());
  if (state.empty()) {
    std::copy(from.begin(), from.end(), out.begin());
    return;
  }
  const auto floats = static_cast<size_t>(codec.StateFloats());
  codec.Correct(from, state.subspan(begin * floats, out.size() * floats), factor, out);
}

// All values of magnitudes of at least `least`.
void SparseCodec::Find(const Source& source, uint32_t least, Found& found) {
  found.count = 0;
  for (size_t first = 0; first < source.size(); first += kPiece) {
    const std::span<float> piece =
        std::span(found.piece).first(std::min(kPiece, source.size() - first));
    source.Read(first, piece);
    if (found.indices.size() < found.count + kPiece) {
      found.indices.resize(std::max(2 * found.count, found.count + kPiece));
      found.values.resize(found.indices.size());
    }
    uint32_t* const indices = found.indices.data() + found.count;
    float* const values = found.values.data() + found.count;
    const size_t more = SparseFindLoop(piece.data(), piece.size(), least, indices);
    for (size_t i = 0; i < more; ++i) {
      values[i] = piece[indices[i]];
      indices[i] += static_cast<uint32_t>(first);
    }
    found.count += more;
  }
}

// Some of the magnitudes, from all over.
void SparseCodec::Sample(const Source& source, Found& found) {
  const size_t count = source.size();
  const size_t length = std::min(kRun, count);
  const size_t runs = std::clamp(count / 256, size_t{1}, size_t{1024});
  const size_t stride = count / runs;
  found.magnitudes.clear();
  std::array<float, kRun> run = {};
  for (size_t number = 0; number < runs; ++number) {
    // At no fixed distance: gradients have rows, whose columns differ.
    const size_t offset = MixKeys(number, stride) % (stride - length + 1);
    source.Read(number * stride + offset, std::span(run).first(length));
    for (size_t i = 0; i < length; ++i) found.magnitudes.push_back(MagnitudeOf(run[i]));
  }
}

// A magnitude that a little more than `kept` of the values have, as the sample tells; at least 1.
// With more to spare it is smaller.
uint32_t SparseCodec::LikelyLeast(size_t kept, size_t count, double spare, Found& found) {
  std::vector<uint32_t>& sample = found.magnitudes;
  const double share = static_cast<double>(kept) / static_cast<double>(count);
  const double expected = share * static_cast<double>(sample.size());
  const auto rank = static_cast<size_t>(spare * (expected + 4 * std::sqrt(expected) + 4));
  if (rank >= sample.size()) return 1;
  const auto at = sample.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(sample.begin(), at, sample.end(), std::greater<>());
  return std::max(*at, 1u);
}

void SparseCodec::KeepLargest(size_t kept, Found& found) {
  std::vector<uint32_t>& magnitudes = found.magnitudes;
  magnitudes.resize(found.count);
  for (size_t i = 0; i < found.count; ++i) magnitudes[i] = MagnitudeOf(found.values[i]);
  const auto last = magnitudes.begin() + static_cast<std::ptrdiff_t>(kept - 1);
  std::nth_element(magnitudes.begin(), last, magnitudes.end(), std::greater<>());
  const uint32_t least = *last;
  const auto larger = static_cast<size_t>(
      std::count_if(magnitudes.begin(), last, [&](uint32_t bits) { return bits > least; }));
  size_t equal = kept - larger;  // So many of those that equal the least one.
  size_t taken = 0;
  for (size_t i = 0; i < found.count; ++i) {
    const uint32_t bits = MagnitudeOf(found.values[i]);
    const bool is_tie = bits == least && equal > 0;
    found.indices[taken] = found.indices[i];
    found.values[taken] = found.values[i];
    taken += bits > least || is_tie ? 1 : 0;
    equal -= is_tie ? 1 : 0;
  }
  found.count = taken;
}

EncodedBody SparseCodec::WriteFound(const Found& found, uint8_t* body) {
  const size_t half = found.count * sizeof(uint32_t);
  if (half == 0) return {};
  std::memcpy(body, found.indices.data(), half);
  std::memcpy(body + half, found.values.data(), half);
  return {.bytes = static_cast<int64_t>(2 * half),
          .is_finite = SparseLargestLoop(found.values.data(), found.count) < kInfinity};
}

EncodedBody SparseCodec::WriteAll(const Source& source, uint8_t* body) {
  const std::span<float> all(reinterpret_cast<float*>(body), source.size());
  source.Read(0, all);
  return {.bytes = static_cast<int64_t>(all.size_bytes()),
          .is_finite = SparseLargestLoop(all.data(), all.size()) < kInfinity};
}

EncodedBody SparseCodec::WriteLargest(const Source& source, int64_t kept, uint8_t* body) {
  if (kept * kPair >= static_cast<int64_t>(source.values.size_bytes())) {
    return WriteAll(source, body);
  }
  const auto wanted = static_cast<size_t>(kept);
  Found& found = MemoryOfThread();
  Sample(source, found);
  Find(source, LikelyLeast(wanted, source.size(), 1, found), found);
  // The sample was not like the rest: more of them, all that are not 0, and at last those, too.
  if (found.count < wanted) Find(source, LikelyLeast(wanted, source.size(), 4, found), found);
  if (found.count < wanted) Find(source, 1, found);
  if (found.count < wanted) Find(source, 0, found);
  KeepLargest(wanted, found);
  return WriteFound(found, body);
}

EncodedBody SparseCodec::WriteFrom(const Source& source, float least, uint8_t* body) {
  Found& found = MemoryOfThread();
  Find(source, MagnitudeOf(least), found);
  return found.count * kPair >= source.values.size_bytes() ? WriteAll(source, body)
                                                           : WriteFound(found, body);
}

EncodedBody SparseCodec::Encode(std::span<const float> values, uint64_t /*key*/,
                                uint8_t* body) const {
  return Write({.codec = *this, .values = values, .state = {}}, body);
}

EncodedBody SparseCodec::EncodeCorrected(std::span<const float> values,
                                         std::span<const float> state, float factor,
                                         uint64_t /*key*/, uint8_t* body) const {
  return Write({.codec = *this, .values = values, .state = state, .factor = factor}, body);
}

bool SparseCodec::IsDense(std::span<const uint8_t> body, int64_t count) {
  return static_cast<int64_t>(body.size()) == 4 * count;
}

std::span<const uint32_t> SparseCodec::IndicesOf(std::span<const uint8_t> body) {
  return {reinterpret_cast<const uint32_t*>(body.data()), body.size() / kPair};
}

Status SparseCodec::DecodeAdd(std::span<const uint8_t> body, float scale,
                              std::span<float> out) const {
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
