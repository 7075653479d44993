// FakeNcclFold: reduces as NCCL may: in rank order, every step rounded to the elements' own type.
// Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "gpu/nccl_api.h"

namespace mydist::testing {

size_t SizeOf(nccl::ElementType type);

// The number behind a scalar argument of `type`.
double NumberAt(const void* scalar, nccl::ElementType type);

struct FakeReduction {
  nccl::ElementType type = nccl::ElementType::kFloat32;
  nccl::ReductionKind kind = nccl::ReductionKind::kSum;
  std::optional<double> scalar;  // Of PreMulSum; `kind` is then kSum.

  bool operator==(const FakeReduction&) const = default;
};

// `count` elements of every source; `output` overlaps none.
void Fold(const std::vector<const void*>& sources, void* output, size_t count,
          const FakeReduction& reduction);

}  // namespace mydist::testing
