#include <cstring>

#include "kernels/compress/magnitudes.h"
#include "kernels/compress/rows.h"
#include "kernels/loop.h"

namespace mydist {
namespace {

// What is smaller in all of a block is sent as 0: its inverse would not be finite.
constexpr float kLeast = 1e-33F;

// A number of 8 bits: sign, exponent and `fraction` bits.
struct Format {
  uint32_t fraction;
  uint32_t bias;  // Of the exponent.
  float most;
};
constexpr Format kE4m3 = {.fraction = 3, .bias = 7, .most = 448};
constexpr Format kE5m2 = {.fraction = 2, .bias = 15, .most = 57344};

// 2^exponent.
MYDIST_LOOP_PART float PowerOfTwo(uint32_t exponent_with_127) {
  return __builtin_bit_cast(float, exponent_with_127 << 23);
}

// Without a branch, which a loop over several values at once cannot have.
MYDIST_LOOP_PART uint32_t Choice(bool is_first, uint32_t first, uint32_t second) {
  const uint32_t mask = 0u - static_cast<uint32_t>(is_first);
  return (first & mask) | (second & ~mask);
}

// Returns the largest magnitude of all values, as bits.
MYDIST_LOOP uint32_t Fp8EncodeLoop(const float* __restrict values, size_t count, size_t block,
                                   uint32_t fraction, uint32_t bias, float format_most,
                                   float* __restrict scales, uint8_t* __restrict codes) {
  const uint32_t dropped = 23 - fraction;  // Bits of a float32's fraction.
  const uint32_t rebias = (127 - bias) << fraction;
  const uint32_t half = (1u << (dropped - 1)) - 1;
  const uint32_t least_normal = (128 - bias) << 23;
  // Added to a smaller number it leaves the nearest multiple of the smallest step in the low bits.
  const float to_steps = PowerOfTwo(127 + 24 - bias - fraction);
  uint32_t largest = 0;
  for (size_t begin = 0, b = 0; begin < count; begin += block, ++b) {
    const float* __restrict x = values + begin;
    uint8_t* __restrict out = codes + begin;
    const size_t length = count - begin < block ? count - begin : block;
    const uint32_t magnitude = LargestMagnitude(x, length);
    largest = largest < magnitude ? magnitude : largest;
    const BlockScale of_block = ScaleOfBlock(magnitude, format_most, kLeast);
    scales[b] = of_block.scale;
    const float inverse = of_block.inverse;
    for (size_t i = 0; i < length; ++i) {
      const auto bits = __builtin_bit_cast(uint32_t, x[i]);
      const uint32_t unsigned_bits = bits & kMagnitude;
      const float scaled = __builtin_bit_cast(float, unsigned_bits) * inverse;
      const auto exact = __builtin_bit_cast(uint32_t, scaled);
      // To nearest, ties to even; a carry into the exponent is right.
      const uint32_t normal = ((exact + half + ((exact >> dropped) & 1u)) >> dropped) - rebias;
      const uint32_t small = __builtin_bit_cast(uint32_t, scaled + to_steps) & 0xffu;
      const uint32_t code = Choice(exact < least_normal, small, normal);
      out[i] = static_cast<uint8_t>((code & 0x7fu) | ((bits >> 24) & 0x80u));
    }
  }
  return largest;
}

MYDIST_LOOP void Fp8DecodeLoop(const float* __restrict scales, const uint8_t* __restrict codes,
                               size_t count, size_t block, uint32_t fraction, uint32_t bias,
                               float by, float* __restrict out) {
  const uint32_t dropped = 23 - fraction;
  const uint32_t rebias = (127 - bias) << 23;
  const uint32_t least_normal = 1u << fraction;
  const float step = PowerOfTwo(127 + 1 - bias - fraction);
  for (size_t begin = 0, b = 0; begin < count; begin += block, ++b) {
    const uint8_t* __restrict code = codes + begin;
    float* __restrict to = out + begin;
    const size_t length = count - begin < block ? count - begin : block;
    const float scale = scales[b] * by;
    for (size_t i = 0; i < length; ++i) {
      const uint32_t magnitude = code[i] & 0x7fu;
      const uint32_t normal = (magnitude << dropped) + rebias;
      // Not a smaller float32 times a power of two: a CPU may be told to take those for 0.
      const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * step;
      const uint32_t bits =
          Choice(magnitude < least_normal, __builtin_bit_cast(uint32_t, small), normal);
      to[i] += scale * __builtin_bit_cast(float, bits | (code[i] & 0x80u) << 24);
    }
  }
}

// Blocks of values as numbers of 8 bits times a float32: the block's largest magnitude ÷ that of
// the format. Rounded to nearest.
class Fp8 final : public GradientCodec {
 public:
  Fp8(const Format& format, int64_t block) : format_(format), block_(block) {}

  int64_t Block() const override { return block_; }
  int64_t MaxBytes(int64_t count) const override { return ScaleBytes(count) + count; }

  EncodedBody Encode(std::span<const float> values, uint64_t /*key*/,
                     uint8_t* body) const override {
    const auto count = static_cast<int64_t>(values.size());
    // Bodies begin at multiples of 8.
    const uint32_t largest = Fp8EncodeLoop(
        values.data(), values.size(), static_cast<size_t>(block_), format_.fraction, format_.bias,
        format_.most, reinterpret_cast<float*>(body), body + ScaleBytes(count));
    return {.bytes = MaxBytes(count), .is_finite = largest < kInfinity};
  }

  Status DecodeAdd(std::span<const uint8_t> body, float scale,
                   std::span<float> out) const override {
    const auto count = static_cast<int64_t>(out.size());
    Fp8DecodeLoop(reinterpret_cast<const float*>(body.data()), body.data() + ScaleBytes(count),
                  out.size(), static_cast<size_t>(block_), format_.fraction, format_.bias, scale,
                  out.data());
    return Status::Ok();
  }

 private:
  int64_t ScaleBytes(int64_t count) const { return (count + block_ - 1) / block_ * 4; }

  const Format format_;
  const int64_t block_;
};

}  // namespace

CodecRow Fp8Row() {
  return {"fp8", 2, [](const CodecOptions& options) {
            return std::make_unique<Fp8>(options.at("fraction") == 3 ? kE4m3 : kE5m2,
                                         static_cast<int64_t>(options.at("block")));
          }};
}

}  // namespace mydist
