#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/compress/levels.h"
#include "kernels/compress/packing.h"
#include "kernels/compress/rows.h"
#include "kernels/compress/sums.h"
#include "kernels/loop.h"

namespace mydist {
namespace {

// A smaller norm is sent as 0: 127 times its inverse would not be finite.
constexpr double kLeast = 1e-36;

// Returns whether all values are finite.
MYDIST_LOOP bool QsgdEncodeLoop(const float* __restrict values, size_t count, size_t bucket,
                                uint32_t levels, size_t bits, uint32_t low, uint32_t high,
                                float* __restrict norms, uint8_t* __restrict packed) {
  bool is_finite = true;
  Codes codes = {};
  for (size_t begin = 0, b = 0; begin < count; begin += bucket, ++b) {
    const size_t end = count - begin < bucket ? count : begin + bucket;
    Sums sums;
    AddSquares(values + begin, end - begin, sums);
    const double norm = __builtin_sqrt(Total(sums));
    const bool is_known = norm <= std::numeric_limits<double>::max();  // False for NaN, too.
    const bool is_sent = is_known && norm >= kLeast;
    is_finite = is_finite && is_known;
    // The norm of values near the largest float32 is none.
    const double most = std::numeric_limits<float>::max();
    const auto sent = static_cast<float>(norm < most ? norm : most);
    norms[b] = is_sent ? sent : is_known ? 0 : __builtin_nanf("");
    const float inverse = is_sent ? static_cast<float>(levels) / sent : 0;
    for (size_t at = begin; at < end; at += kGroup) {
      const size_t length = end - at < kGroup ? end - at : kGroup;
      if (length < kGroup || !is_sent) std::memset(codes.bytes, 0, kGroup);
      if (is_sent) {
        CodesOfLevels(values + at, length, inverse, levels, low, high, static_cast<uint32_t>(at),
                      codes);
      }
      PackGroup(codes, length, bits, packed);
      packed += GroupBytes(length, bits);
    }
  }
  return is_finite;
}

MYDIST_LOOP void QsgdDecodeLoop(const float* __restrict norms, const uint8_t* __restrict packed,
                                size_t count, size_t bucket, uint32_t levels, size_t bits, float by,
                                float* __restrict out) {
  Codes codes;
  for (size_t begin = 0, b = 0; begin < count; begin += bucket, ++b) {
    const size_t end = count - begin < bucket ? count : begin + bucket;
    const float unit = norms[b] / static_cast<float>(levels) * by;
    for (size_t at = begin; at < end; at += kGroup) {
      const size_t length = end - at < kGroup ? end - at : kGroup;
      UnpackGroup(packed, length, bits, codes);
      packed += GroupBytes(length, bits);
      AddLevels(codes, length, unit, levels, out + at);
    }
  }
}

// Buckets of values as whole numbers of −levels to levels, drawn so that their mean is the value,
// times a float32, which is the bucket's norm ÷ levels.
class Qsgd final : public GradientCodec {
 public:
  Qsgd(uint32_t levels, int64_t bucket)
      : levels_(levels), bits_(static_cast<size_t>(std::bit_width(2 * levels))), bucket_(bucket) {}

  int64_t Block() const override { return bucket_; }

  int64_t MaxBytes(int64_t count) const override {
    const size_t full = PackedBytes(static_cast<size_t>(bucket_), bits_);
    const size_t rest = PackedBytes(static_cast<size_t>(count % bucket_), bits_);
    return NormBytes(count) + count / bucket_ * static_cast<int64_t>(full) +
           static_cast<int64_t>(rest);
  }

  EncodedBody Encode(std::span<const float> values, uint64_t key, uint8_t* body) const override {
    const auto count = static_cast<int64_t>(values.size());
    const DrawKey draws(key);
    // Bodies begin at multiples of 8.
    const bool is_finite = QsgdEncodeLoop(
        values.data(), values.size(), static_cast<size_t>(bucket_), levels_, bits_, draws.low,
        draws.high, reinterpret_cast<float*>(body), body + NormBytes(count));
    return {.bytes = MaxBytes(count), .is_finite = is_finite};
  }

  Status DecodeAdd(std::span<const uint8_t> body, float scale,
                   std::span<float> out) const override {
    const auto count = static_cast<int64_t>(out.size());
    QsgdDecodeLoop(reinterpret_cast<const float*>(body.data()), body.data() + NormBytes(count),
                   out.size(), static_cast<size_t>(bucket_), levels_, bits_, scale, out.data());
    return Status::Ok();
  }

 private:
  int64_t NormBytes(int64_t count) const { return (count + bucket_ - 1) / bucket_ * 4; }

  const uint32_t levels_;
  const size_t bits_;  // Of the codes 0 to 2·levels.
  const int64_t bucket_;
};

}  // namespace

CodecRow QsgdRow() {
  return {"qsgd", 5, [](const CodecOptions& options) {
            return std::make_unique<Qsgd>(static_cast<uint32_t>(options.at("levels")),
                                          static_cast<int64_t>(options.at("bucket")));
          }};
}

}  // namespace mydist
