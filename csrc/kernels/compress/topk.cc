#include <memory>

#include "kernels/compress/rows.h"
#include "kernels/compress/sparse_body.h"

namespace mydist {
namespace {

// The values that are largest in magnitude; what is left is the residual.
class TopK final : public SparseCodec {
 public:
  explicit TopK(double ratio) : ratio_(ratio) {}

  int64_t MaxBytes(int64_t count) const override {
    return SparseBytes(count, KeptOf(ratio_, count));
  }
  int64_t StateFloats() const override { return 1; }

 private:
  EncodedBody Write(const Source& source, uint8_t* body) const override {
    return WriteLargest(source, KeptOf(ratio_, static_cast<int64_t>(source.size())), body);
  }

  const double ratio_;
};

}  // namespace

CodecRow TopKRow() {
  return {"topk", 16,
          [](const CodecOptions& options) { return std::make_unique<TopK>(options.at("ratio")); }};
}

}  // namespace mydist
