#include <cstring>

#include "kernels/compress/draws.h"
#include "kernels/compress/magnitudes.h"
#include "kernels/compress/packing.h"
#include "kernels/compress/rows.h"
#include "kernels/compress/signs.h"
#include "kernels/loop.h"

namespace mydist {
namespace {

constexpr uint32_t kMinusZero = 0x80000000u;
constexpr int64_t kUnitBytes = 4;

// Of the values that are 0, about one half gets the bit 1.
MYDIST_LOOP_PART void DrawZeros(const float* __restrict values, size_t count, uint32_t low,
                                uint32_t high, uint32_t position, uint8_t* __restrict bits) {
  Codes codes = {};
  const int length = static_cast<int>(count);
  for (int i = 0; i < length; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, values[i]) & kMagnitude;
    codes.bytes[i] = static_cast<uint8_t>(magnitude == 0 ? 1 : 0);
  }
  uint8_t zeros[kGroup / 8];
  PackGroup(codes, count, 1, zeros);
  uint8_t coins[kGroup / 8];
  for (uint32_t j = 0; j < sizeof coins; ++j) {
    coins[j] = static_cast<uint8_t>(Draw(low, high, position + j) >> 24);
  }
  const size_t bytes = GroupBytes(count, 1);
  for (size_t j = 0; j < bytes; ++j) bits[j] |= zeros[j] & coins[j];
}

// Returns the largest magnitude of all values, as bits.
MYDIST_LOOP uint32_t SignSgdEncodeLoop(const float* __restrict values, size_t count, uint32_t low,
                                       uint32_t high, uint8_t* __restrict bits) {
  uint32_t largest = 0;
  Codes codes = {};
  for (size_t begin = 0; begin < count; begin += kGroup) {
    const float* __restrict x = values + begin;
    const int length = static_cast<int>(count - begin < kGroup ? count - begin : kGroup);
    if (length < static_cast<int>(kGroup)) std::memset(codes.bytes, 0, kGroup);
    uint32_t least = kMagnitude;
    for (int i = 0; i < length; ++i) {
      const auto value = __builtin_bit_cast(uint32_t, x[i]);
      const uint32_t magnitude = value & kMagnitude;
      largest = largest < magnitude ? magnitude : largest;
      least = least < magnitude ? least : magnitude;
      codes.bytes[i] = static_cast<uint8_t>(value > kMinusZero ? 1 : 0);
    }
    uint8_t* __restrict out = bits + begin / 8;
    PackGroup(codes, static_cast<size_t>(length), 1, out);
    if (least == 0) {
      DrawZeros(x, static_cast<size_t>(length), low, high, static_cast<uint32_t>(begin / 8), out);
    }
  }
  return largest;
}

MYDIST_LOOP void SignSgdDecodeLoop(const uint8_t* __restrict bits, size_t count, float by,
                                   float* __restrict out) {
  AddSigns(bits, count, by, out);
}

// Each value as its sign: 1 or −1. The owner of a slice adds up those of all senders, and the sign
// of the sum is their vote. A sum of 0 has no sign; a draw decides, or ties would pull one way.
class SignSgd final : public GradientCodec {
 public:
  int64_t Block() const override { return 8; }
  int64_t MaxBytes(int64_t count) const override { return kUnitBytes + (count + 7) / 8; }

  EncodedBody Encode(std::span<const float> values, uint64_t key, uint8_t* body) const override {
    const DrawKey draws(key);
    const uint32_t largest =
        SignSgdEncodeLoop(values.data(), values.size(), draws.low, draws.high, body + kUnitBytes);
    const bool is_finite = largest < kInfinity;
    const float unit = is_finite ? 1 : __builtin_nanf("");
    std::memcpy(body, &unit, sizeof unit);
    return {.bytes = MaxBytes(static_cast<int64_t>(values.size())), .is_finite = is_finite};
  }

  Status DecodeAdd(std::span<const uint8_t> body, float scale,
                   std::span<float> out) const override {
    float unit = 0;
    std::memcpy(&unit, body.data(), sizeof unit);
    if (unit == unit && unit != 1) {
      return Status::Internal("a body of signsgd has the unit " + std::to_string(unit) +
                              ", expected 1 or NaN");
    }
    SignSgdDecodeLoop(body.data() + kUnitBytes, out.size(), unit * scale, out.data());
    return Status::Ok();
  }
};

}  // namespace

CodecRow SignSgdRow() {
  return {"signsgd", 4, [](const CodecOptions&) { return std::make_unique<SignSgd>(); }};
}

}  // namespace mydist
