#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/compress/magnitudes.h"
#include "kernels/compress/rows.h"
#include "kernels/loop.h"

namespace mydist {
namespace {

// Added to a float of less than 2^22 it leaves the nearest integer in the low bits, ties to even.
constexpr float kToInteger = 12582912.0F;
constexpr float kMost = 127;
// What is smaller in all of a block is sent as 0: its inverse would not be finite.
constexpr float kLeast = 1e-36F;

// Returns the largest magnitude of all values, as bits.
MYDIST_LOOP uint32_t Int8EncodeLoop(const float* __restrict values, size_t count, size_t block,
                                    float* __restrict scales, int8_t* __restrict codes) {
  uint32_t largest = 0;
  for (size_t begin = 0, b = 0; begin < count; begin += block, ++b) {
    const float* __restrict x = values + begin;
    int8_t* __restrict out = codes + begin;
    const size_t length = count - begin < block ? count - begin : block;
    const uint32_t magnitude = LargestMagnitude(x, length);
    largest = largest < magnitude ? magnitude : largest;
    const BlockScale of_block = ScaleOfBlock(magnitude, kMost, kLeast);
    scales[b] = of_block.scale;
    const float inverse = of_block.inverse;
    for (size_t i = 0; i < length; ++i) {
      const float shifted = x[i] * inverse + kToInteger;
      out[i] = static_cast<int8_t>(__builtin_bit_cast(uint32_t, shifted) & 0xffu);
    }
  }
  return largest;
}

MYDIST_LOOP void Int8DecodeLoop(const float* __restrict scales, const int8_t* __restrict codes,
                                size_t count, size_t block, float by, float* __restrict out) {
  for (size_t begin = 0, b = 0; begin < count; begin += block, ++b) {
    const int8_t* __restrict code = codes + begin;
    float* __restrict to = out + begin;
    const size_t length = count - begin < block ? count - begin : block;
    const float scale = scales[b] * by;
    for (size_t i = 0; i < length; ++i) to[i] += scale * static_cast<float>(code[i]);
  }
}

// Blocks of values as integers of −127 to 127 times a float32, which is the block's largest
// magnitude ÷ 127. Rounded to nearest, so the error is at most half of that.
class Int8 final : public GradientCodec {
 public:
  explicit Int8(int64_t block) : block_(block) {}

  int64_t Block() const override { return block_; }
  int64_t MaxBytes(int64_t count) const override { return ScaleBytes(count) + count; }

  EncodedBody Encode(std::span<const float> values, uint64_t /*key*/,
                     uint8_t* body) const override {
    const auto count = static_cast<int64_t>(values.size());
    // Bodies begin at multiples of 8.
    auto* const scales = reinterpret_cast<float*>(body);
    auto* const codes = reinterpret_cast<int8_t*>(body + ScaleBytes(count));
    const uint32_t largest =
        Int8EncodeLoop(values.data(), values.size(), static_cast<size_t>(block_), scales, codes);
    return {.bytes = MaxBytes(count), .is_finite = largest < kInfinity};
  }

  Status DecodeAdd(std::span<const uint8_t> body, float scale,
                   std::span<float> out) const override {
    const auto count = static_cast<int64_t>(out.size());
    Int8DecodeLoop(reinterpret_cast<const float*>(body.data()),
                   reinterpret_cast<const int8_t*>(body.data() + ScaleBytes(count)), out.size(),
                   static_cast<size_t>(block_), scale, out.data());
    return Status::Ok();
  }

 private:
  int64_t ScaleBytes(int64_t count) const { return (count + block_ - 1) / block_ * 4; }

  const int64_t block_;
};

}  // namespace

CodecRow Int8Row() {
  return {"int8", 1, [](const CodecOptions& options) {
            return std::make_unique<Int8>(static_cast<int64_t>(options.at("block")));
          }};
}

}  // namespace mydist
