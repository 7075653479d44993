#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "contender.h"

namespace mydist::bench {
namespace {

constexpr float kFactor = 2.0F;  // Exact, so that the result can be checked.
constexpr size_t kPageBytes = 4096;

class MemoryPass final : public Contender {
 public:
  MemoryPass(Ranks* ranks, int64_t bytes) : ranks_(ranks), memory_(PrivateMemory(bytes)) {}

  std::string name() const override { return "bound"; }
  float* memory() override { return memory_.get(); }
  Status Allreduce(float* data, int64_t count) override {
    for (int64_t i = 0; i < count; ++i) data[i] *= kFactor;
    return Status::Ok();
  }
  Status Barrier() override {
    ranks_->Barrier();
    return Status::Ok();
  }
  float Expected(float own, float) const override { return own * kFactor; }

 private:
  Ranks* const ranks_;
  const std::shared_ptr<float> memory_;
};

}  // namespace

std::shared_ptr<float> PrivateMemory(int64_t bytes) {
  const size_t rounded = (static_cast<size_t>(bytes) + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* memory = std::aligned_alloc(kPageBytes, rounded);
  MYDIST_CHECK(memory != nullptr);
  std::memset(memory, 0, rounded);
  return {static_cast<float*>(memory), std::free};
}

Entry MakeMemoryPass(Ranks* ranks, int64_t bytes) {
  return {"bound", std::make_unique<MemoryPass>(ranks, bytes), ""};
}

}  // namespace mydist::bench
