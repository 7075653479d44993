#include <memory>

#include "kernels/compress/rows.h"
#include "kernels/compress/sparse_body.h"

namespace mydist {
namespace {

// The values of at least a magnitude, however many; what is left is the residual.
class Threshold final : public GradientCodec {
 public:
  explicit Threshold(float least) : least_(least) {}

  bool IsFixed() const override { return false; }
  int64_t MaxBytes(int64_t count) const override { return SparseBytes(count, count); }
  int64_t StateFloats() const override { return 1; }

  EncodedBody Encode(std::span<const float> values, uint64_t /*key*/,
                     uint8_t* body) const override {
    return WriteSparse(values, AtLeast(values, least_), body);
  }

  Status DecodeAdd(std::span<const uint8_t> body, float scale,
                   std::span<float> out) const override {
    return AddSparse(body, scale, out);
  }

 private:
  const float least_;
};

}  // namespace

CodecRow ThresholdRow() {
  return {"threshold", 17, [](const CodecOptions& options) {
            return std::make_unique<Threshold>(static_cast<float>(options.at("value")));
          }};
}

}  // namespace mydist
