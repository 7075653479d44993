#include <cstdlib>
#include <cstring>

#include "base/status.h"
#include "contender.h"

namespace mydist::bench {
namespace {

constexpr float kFactor = 2.0F;  // Exact, so that the result can be checked.
constexpr size_t kPageBytes = 4096;

using Pass = void (*)(float* data, int64_t count);

#define MYDIST_MULTIPLY_LOOP(Vector)                                                        \
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(float);                                \
  int64_t i = 0;                                                                            \
  for (; i + kLanes <= count; i += kLanes) *reinterpret_cast<Vector*>(data + i) *= kFactor; \
  for (; i < count; ++i) data[i] *= kFactor

typedef float Vector16 [[gnu::vector_size(16), gnu::may_alias]];
void MultiplyBy16(float* data, int64_t count) { MYDIST_MULTIPLY_LOOP(Vector16); }

// As wide as the processor can, or the pass would be bound by instructions and not by memory.
#if defined(__x86_64__)
typedef float Vector32 [[gnu::vector_size(32), gnu::may_alias]];
typedef float Vector64 [[gnu::vector_size(64), gnu::may_alias]];
[[gnu::target("avx2")]] void MultiplyBy32(float* data, int64_t count) {
  MYDIST_MULTIPLY_LOOP(Vector32);
}
[[gnu::target("avx512f")]] void MultiplyBy64(float* data, int64_t count) {
  MYDIST_MULTIPLY_LOOP(Vector64);
}
Pass WidestPass() {
  if (__builtin_cpu_supports("avx512f")) return MultiplyBy64;
  return __builtin_cpu_supports("avx2") ? MultiplyBy32 : MultiplyBy16;
}
#else
Pass WidestPass() { return MultiplyBy16; }
#endif

class MemoryPass final : public Contender {
 public:
  MemoryPass(Ranks* ranks, int64_t bytes, std::string name, Pass pass)
      : ranks_(ranks), name_(std::move(name)), pass_(pass), memory_(PrivateMemory(bytes)) {}

  std::string name() const override { return name_; }
  float* memory() override { return memory_.get(); }
  Status Allreduce(float* data, int64_t count) override {
    pass_(data, count);
    return Status::Ok();
  }
  Status Barrier() override {
    ranks_->Barrier();
    return Status::Ok();
  }
  float Expected(float own, float) const override { return own * kFactor; }

 private:
  Ranks* const ranks_;
  const std::string name_;
  const Pass pass_;
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

Entry MakeMemoryPass(Ranks* ranks, int64_t bytes, bool is_widest) {
  const std::string name = is_widest ? "bound" : "plain-pass";
  const Pass pass = is_widest ? WidestPass() : MultiplyBy16;
  return {name, std::make_unique<MemoryPass>(ranks, bytes, name, pass), ""};
}

}  // namespace mydist::bench
