#include <memory>

#include "kernels/compress/rows.h"
#include "kernels/compress/sparse_body.h"

namespace mydist {
namespace {

// The values that are largest in magnitude; what is left is the residual.
class TopK final : public GradientCodec {
 public:
  explicit TopK(double ratio) : ratio_(ratio) {}

  int64_t MaxBytes(int64_t count) const override {
    return SparseBytes(count, KeptOf(ratio_, count));
  }
  int64_t StateFloats() const override { return 1; }

  EncodedBody Encode(std::span<const float> values, uint64_t /*key*/,
                     uint8_t* body) const override {
    return WriteLargest(values, KeptOf(ratio_, static_cast<int64_t>(values.size())), body);
  }

  Status DecodeAdd(std::span<const uint8_t> body, float scale,
                   std::span<float> out) const override {
    return AddSparse(body, scale, out);
  }

 private:
  const double ratio_;
};

}  // namespace

CodecRow TopKRow() {
  return {"topk", 16,
          [](const CodecOptions& options) { return std::make_unique<TopK>(options.at("ratio")); }};
}

}  // namespace mydist
