#include <cmath>
#include <cstring>

#include "kernels/compress/packing.h"
#include "kernels/compress/rows.h"
#include "kernels/compress/signs.h"
#include "kernels/compress/sums.h"
#include "kernels/loop.h"

namespace mydist {
namespace {

constexpr int64_t kScaleBytes = 4;

// Returns the sum of all magnitudes.
MYDIST_LOOP double OneBitEncodeLoop(const float* __restrict values, size_t count,
                                    uint8_t* __restrict bits) {
  Sums sums;
  Codes codes = {};
  for (size_t begin = 0; begin < count; begin += kGroup) {
    const float* __restrict x = values + begin;
    const int length = static_cast<int>(count - begin < kGroup ? count - begin : kGroup);
    if (length < static_cast<int>(kGroup)) std::memset(codes.bytes, 0, kGroup);
    AddMagnitudes(x, static_cast<size_t>(length), sums);
    for (int i = 0; i < length; ++i) {
      codes.bytes[i] = static_cast<uint8_t>(__builtin_bit_cast(uint32_t, x[i]) >> 31);
    }
    PackGroup(codes, static_cast<size_t>(length), 1, bits + begin / 8);
  }
  return Total(sums);
}

MYDIST_LOOP void OneBitDecodeLoop(const uint8_t* __restrict bits, size_t count, float by,
                                  float* __restrict out) {
  AddSigns(bits, count, by, out);
}

// Each value as its sign, and one float32: the mean magnitude, which is the nearest vector of equal
// magnitudes. What is missing stays in the residual.
class OneBit final : public GradientCodec {
 public:
  int64_t Block() const override { return 8; }
  int64_t MaxBytes(int64_t count) const override { return kScaleBytes + (count + 7) / 8; }
  int64_t StateFloats() const override { return 1; }

  EncodedBody Encode(std::span<const float> values, uint64_t /*key*/,
                     uint8_t* body) const override {
    const double sum = OneBitEncodeLoop(values.data(), values.size(), body + kScaleBytes);
    const bool is_finite = std::isfinite(sum);
    const double count = values.empty() ? 1 : static_cast<double>(values.size());
    const float scale = is_finite ? static_cast<float>(sum / count) : __builtin_nanf("");
    std::memcpy(body, &scale, sizeof scale);
    return {.bytes = MaxBytes(static_cast<int64_t>(values.size())), .is_finite = is_finite};
  }

  Status DecodeAdd(std::span<const uint8_t> body, float scale,
                   std::span<float> out) const override {
    float mean = 0;
    std::memcpy(&mean, body.data(), sizeof mean);
    OneBitDecodeLoop(body.data() + kScaleBytes, out.size(), mean * scale, out.data());
    return Status::Ok();
  }
};

}  // namespace

CodecRow OneBitRow() {
  return {"onebit", 3, [](const CodecOptions&) { return std::make_unique<OneBit>(); }};
}

}  // namespace mydist
