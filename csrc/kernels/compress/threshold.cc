#include <memory>

#include "kernels/compress/rows.h"
#include "kernels/compress/sparse_body.h"

namespace mydist {
namespace {

// The values of at least a magnitude, however many; what is left is the residual.
class Threshold final : public SparseCodec {
 public:
  explicit Threshold(float least) : least_(least) {}

  bool IsFixed() const override { return false; }
  int64_t MaxBytes(int64_t count) const override { return SparseBytes(count, count); }
  int64_t StateFloats() const override { return 1; }

 private:
  EncodedBody Write(const Source& source, uint8_t* body) const override {
    return WriteFrom(source, least_, body);
  }

  const float least_;
};

}  // namespace

CodecRow ThresholdRow() {
  return {"threshold", 17, [](const CodecOptions& options) {
            return std::make_unique<Threshold>(static_cast<float>(options.at("value")));
          }};
}

}  // namespace mydist
