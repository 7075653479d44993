#include <cmath>
#include <cstring>

#include "kernels/compress/levels.h"
#include "kernels/compress/magnitudes.h"
#include "kernels/compress/packing.h"
#include "kernels/compress/rows.h"
#include "kernels/compress/sums.h"
#include "kernels/loop.h"

namespace mydist {
namespace {

constexpr int64_t kScaleBytes = 4;
constexpr size_t kBits = 2;  // For −1, 0 and 1.
// Larger values are cut off at so many times the root of the mean square.
constexpr double kClip = 2.5;
// A smaller scale is sent as 0: its inverse would not be finite.
constexpr float kLeast = 1e-36F;

// Returns the largest magnitude of all values, as bits.
MYDIST_LOOP uint32_t TernGradSumsLoop(const float* __restrict values, size_t count,
                                      double* __restrict squares) {
  uint32_t largest = 0;
  Sums sums;
  for (size_t begin = 0; begin < count; begin += kGroup) {
    const float* __restrict x = values + begin;
    const size_t length = count - begin < kGroup ? count - begin : kGroup;
    AddSquares(x, length, sums);
    const uint32_t magnitude = LargestMagnitude(x, length);
    largest = largest < magnitude ? magnitude : largest;
  }
  *squares = Total(sums);
  return largest;
}

MYDIST_LOOP void TernGradEncodeLoop(const float* __restrict values, size_t count, float inverse,
                                    uint32_t low, uint32_t high, uint8_t* __restrict packed) {
  Codes codes = {};
  for (size_t begin = 0; begin < count; begin += kGroup) {
    const size_t length = count - begin < kGroup ? count - begin : kGroup;
    if (length < kGroup) std::memset(codes.bytes, 0, kGroup);
    CodesOfLevels(values + begin, length, inverse, 1, low, high, static_cast<uint32_t>(begin),
                  codes);
    PackGroup(codes, length, kBits, packed + begin / 8 * kBits);
  }
}

MYDIST_LOOP void TernGradDecodeLoop(const uint8_t* __restrict packed, size_t count, float by,
                                    float* __restrict out) {
  Codes codes;
  for (size_t begin = 0; begin < count; begin += kGroup) {
    const size_t length = count - begin < kGroup ? count - begin : kGroup;
    UnpackGroup(packed + begin / 8 * kBits, length, kBits, codes);
    AddLevels(codes, length, by, 1, out + begin);
  }
}

// Each value as −1, 0 or 1, drawn so that its mean is the value, times one float32: the largest
// magnitude, after values far from the others are cut off.
class TernGrad final : public GradientCodec {
 public:
  int64_t Block() const override { return 4; }
  int64_t MaxBytes(int64_t count) const override { return kScaleBytes + (count + 3) / 4; }

  EncodedBody Encode(std::span<const float> values, uint64_t key, uint8_t* body) const override {
    const auto bytes = MaxBytes(static_cast<int64_t>(values.size()));
    double squares = 0;
    const uint32_t largest = TernGradSumsLoop(values.data(), values.size(), &squares);
    const double count = values.empty() ? 1 : static_cast<double>(values.size());
    const double clip = kClip * std::sqrt(squares / count);
    const auto most = __builtin_bit_cast(float, largest);
    const bool is_finite = largest < kInfinity;
    float scale = is_finite && clip < most ? static_cast<float>(clip) : most;
    if (!is_finite) scale = __builtin_nanf("");
    if (scale < kLeast) scale = 0;
    std::memcpy(body, &scale, sizeof scale);
    if (scale > 0) {
      const DrawKey draws(key);
      TernGradEncodeLoop(values.data(), values.size(), 1 / scale, draws.low, draws.high,
                         body + kScaleBytes);
    } else {
      std::memset(body + kScaleBytes, 0, static_cast<size_t>(bytes - kScaleBytes));
    }
    return {.bytes = bytes, .is_finite = is_finite};
  }

  Status DecodeAdd(std::span<const uint8_t> body, float scale,
                   std::span<float> out) const override {
    float most = 0;
    std::memcpy(&most, body.data(), sizeof most);
    TernGradDecodeLoop(body.data() + kScaleBytes, out.size(), most * scale, out.data());
    return Status::Ok();
  }
};

}  // namespace

CodecRow TernGradRow() {
  return {"terngrad", 6, [](const CodecOptions&) { return std::make_unique<TernGrad>(); }};
}

}  // namespace mydist
