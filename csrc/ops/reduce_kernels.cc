#include "ops/reduce_kernels.h"

#include <algorithm>

#include "base/check.h"
#include "ops/codec.h"
#include "ops/combine.h"

namespace mydist {
namespace {

// Two blocks (accumulator and incoming) and the stretches of source they come from fit into L1.
constexpr int64_t kBlockBytes = 8192;

struct FoldArguments {
  std::span<const void* const> sources;
  void* output;
  int64_t count;
  const Reduction* reduction;
};

template <ReduceOp kOp, typename T>
void Fold(const FoldArguments& arguments) {
  using Wide = typename Codec<T>::Wide;
  constexpr int64_t kBlockCount = kBlockBytes / static_cast<int64_t>(sizeof(Wide));
  alignas(64) Wide accumulator[kBlockCount];
  alignas(64) Wide incoming[kBlockCount];
  const double prescale = arguments.reduction->prescale;
  const Factor factor{arguments.reduction->postscale, arguments.reduction->divisor};
  const size_t last = arguments.sources.size() - 1;
  for (int64_t begin = 0; begin < arguments.count; begin += kBlockCount) {
    const int64_t count = std::min(kBlockCount, arguments.count - begin);
    const auto load = [&](size_t k, Wide* block) {
      return Codec<T>::Load(static_cast<const T*>(arguments.sources[k]) + begin, block, count,
                            prescale);
    };
    T* output = static_cast<T*>(arguments.output) + begin;
    const Wide* folded = load(0, accumulator);
    for (size_t k = 1; k <= last; ++k) {
      const Wide* next = load(k, incoming);
      Wide* target = k == last ? Codec<T>::LastTarget(output, accumulator) : accumulator;
      CombineElements<kOp>(folded, next, target, count);
      folded = target;
    }
    Codec<T>::Store(folded, accumulator, output, count, factor);
  }
}

template <ReduceOp kOp>
void FoldByType(const FoldArguments& arguments) {
  VisitElement(arguments.reduction->dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (kCombines<kOp, T>) {
      Fold<kOp, T>(arguments);
    } else {
      MYDIST_CHECK(false);
    }
  });
}

}  // namespace

void ReduceInRankOrder(std::span<const void* const> sources, void* output, int64_t count,
                       const Reduction& reduction) {
  MYDIST_CHECK(!sources.empty());
  const FoldArguments arguments{sources, output, count, &reduction};
  switch (reduction.op) {
    case ReduceOp::kSum:
      return FoldByType<ReduceOp::kSum>(arguments);
    case ReduceOp::kMin:
      return FoldByType<ReduceOp::kMin>(arguments);
    case ReduceOp::kMax:
      return FoldByType<ReduceOp::kMax>(arguments);
    case ReduceOp::kProduct:
      return FoldByType<ReduceOp::kProduct>(arguments);
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      break;  // Not folds of elements.
  }
  MYDIST_CHECK(false);
}

}  // namespace mydist
