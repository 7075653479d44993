#include <memory>

#include "kernels/compress/rows.h"
#include "kernels/compress/sparse_body.h"
#include "kernels/loop.h"

namespace mydist {
namespace {

MYDIST_LOOP void DgcCorrectLoop(const float* __restrict g, const float* __restrict state,
                                float factor, float momentum, float* __restrict corrected,
                                size_t count) {
  const float decay = momentum * factor;
  for (size_t i = 0; i < count; ++i) {
    const float u = decay * state[2 * i] + g[i];
    corrected[i] = factor * state[2 * i + 1] + u;
  }
}

MYDIST_LOOP void DgcKeepLoop(const float* __restrict g, float* __restrict state, float factor,
                             float momentum, size_t count) {
  const float decay = momentum * factor;
  for (size_t i = 0; i < count; ++i) {
    const float u = decay * state[2 * i] + g[i];
    state[2 * i + 1] = factor * state[2 * i + 1] + u;
    state[2 * i] = u;
  }
}

// Deep gradient compression, Lin et al., arXiv:1712.01887: u ← m·u + g, v ← v + u. The largest |v|
// are sent, and u and v are 0 there. State: u, v.
class Dgc final : public SparseCodec {
 public:
  Dgc(double ratio, float momentum) : ratio_(ratio), momentum_(momentum) {}

  int64_t MaxBytes(int64_t count) const override {
    return SparseBytes(count, KeptOf(ratio_, count));
  }
  int64_t StateFloats() const override { return 2; }

  void Correct(std::span<const float> values, std::span<const float> state, float factor,
               std::span<float> corrected) const override {
    DgcCorrectLoop(values.data(), state.data(), factor, momentum_, corrected.data(), values.size());
  }

  // The body is one that this rank has written.
  Status Keep(std::span<const float> values, std::span<float> state, float factor,
              std::span<const uint8_t> body) const override {
    DgcKeepLoop(values.data(), state.data(), factor, momentum_, values.size());
    if (IsDense(body, static_cast<int64_t>(values.size()))) {
      for (float& each : state) each = 0;
      return Status::Ok();
    }
    for (const size_t index : IndicesOf(body)) {
      if (index >= values.size()) return Status::Internal("a body of dgc has a wrong index");
      state[2 * index] = state[2 * index + 1] = 0;
    }
    return Status::Ok();
  }

 private:
  EncodedBody Write(const Source& source, uint8_t* body) const override {
    return WriteLargest(source, KeptOf(ratio_, static_cast<int64_t>(source.size())), body);
  }

  const double ratio_;
  const float momentum_;
};

}  // namespace

CodecRow DgcRow() {
  return {"dgc", 18, [](const CodecOptions& options) {
            return std::make_unique<Dgc>(options.at("ratio"),
                                         static_cast<float>(options.at("momentum")));
          }};
}

}  // namespace mydist
