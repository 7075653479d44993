#include <cstring>

#include "kernels/compress/draws.h"
#include "kernels/compress/magnitudes.h"
#include "kernels/compress/rows.h"
#include "kernels/loop.h"

namespace mydist {
namespace {

constexpr uint32_t kFraction = 0x007fffffu;
constexpr uint32_t kMostExponent = 254;  // Of a finite float32, as in its bits.
constexpr uint32_t kMostCode = 127;
constexpr uint8_t kNotANumber = 255;
constexpr size_t kBlock = 512;

// A base for each block: an exponent e of the block is the code e − base, and what has no code is
// 0, as it is less than 2^-125 of the block's largest. Returns the largest magnitude, as bits.
MYDIST_LOOP uint32_t NaturalEncodeLoop(const float* __restrict values, size_t count, uint32_t low,
                                       uint32_t high, uint8_t* __restrict bases,
                                       uint8_t* __restrict codes) {
  uint32_t largest = 0;
  for (size_t begin = 0, b = 0; begin < count; begin += kBlock, ++b) {
    const float* __restrict x = values + begin;
    uint8_t* __restrict out = codes + begin;
    const int length = static_cast<int>(count - begin < kBlock ? count - begin : kBlock);
    const auto first = static_cast<uint32_t>(begin);
    const uint32_t most = LargestMagnitude(x, static_cast<size_t>(length));
    largest = largest < most ? most : largest;
    const uint32_t above = (most >> 23) + 1;  // A value may be rounded up to this exponent.
    const uint32_t top = above < kMostExponent ? above : kMostExponent;
    const int32_t base = top < kMostCode ? 0 : static_cast<int32_t>(top - kMostCode);
    bases[b] = most < kInfinity ? static_cast<uint8_t>(base) : kNotANumber;
    for (int i = 0; i < length; ++i) {
      const auto bits = __builtin_bit_cast(uint32_t, x[i]);
      const uint32_t draw = Draw(low, high, first + static_cast<uint32_t>(i)) & kFraction;
      // The fraction is the probability of the next power; this carries as often.
      const auto drawn = static_cast<int32_t>(((bits & kMagnitude) + draw) >> 23);
      const int32_t exponent =
          drawn < static_cast<int32_t>(top) ? drawn : static_cast<int32_t>(top);
      const int32_t code = exponent > base ? exponent - base : 0;
      out[i] = static_cast<uint8_t>(static_cast<uint32_t>(code) | ((bits >> 24) & 0x80u));
    }
  }
  return largest;
}

MYDIST_LOOP void NaturalDecodeLoop(const uint8_t* __restrict bases, const uint8_t* __restrict codes,
                                   size_t count, float by, float* __restrict out) {
  for (size_t begin = 0, b = 0; begin < count; begin += kBlock, ++b) {
    const uint8_t* __restrict code = codes + begin;
    float* __restrict to = out + begin;
    const int length = static_cast<int>(count - begin < kBlock ? count - begin : kBlock);
    const uint32_t base = bases[b];
    // Another base would lead to an exponent that no number has.
    const float unit = base <= kMostExponent - kMostCode ? by : __builtin_nanf("");
    for (int i = 0; i < length; ++i) {
      const uint32_t magnitude = code[i] & kMostCode;
      const uint32_t exponent = magnitude == 0 ? 0 : base + magnitude;
      const uint32_t bits = (exponent & 0xffu) << 23 | (code[i] & 0x80u) << 24;
      to[i] += unit * __builtin_bit_cast(float, bits);
    }
  }
}

// Each value as one of the two powers of two next to it, drawn so that its mean is the value. A
// byte has the sign and the exponent, less the base of its block.
class Natural final : public GradientCodec {
 public:
  int64_t Block() const override { return kBlock; }
  int64_t MaxBytes(int64_t count) const override { return BaseBytes(count) + count; }

  EncodedBody Encode(std::span<const float> values, uint64_t key, uint8_t* body) const override {
    const auto count = static_cast<int64_t>(values.size());
    const DrawKey draws(key);
    const uint32_t largest = NaturalEncodeLoop(values.data(), values.size(), draws.low, draws.high,
                                               body, body + BaseBytes(count));
    return {.bytes = MaxBytes(count), .is_finite = largest < kInfinity};
  }

  Status DecodeAdd(std::span<const uint8_t> body, float scale,
                   std::span<float> out) const override {
    const auto count = static_cast<int64_t>(out.size());
    NaturalDecodeLoop(body.data(), body.data() + BaseBytes(count), out.size(), scale, out.data());
    return Status::Ok();
  }

 private:
  static int64_t BaseBytes(int64_t count) {
    return (count + static_cast<int64_t>(kBlock) - 1) / static_cast<int64_t>(kBlock);
  }
};

}  // namespace

CodecRow NaturalRow() {
  return {"natural", 7, [](const CodecOptions&) { return std::make_unique<Natural>(); }};
}

}  // namespace mydist
