// Adasum conformance: adaptive summation over any transport. Every rank of the job calls the same
// Check… functions in the same order.
#pragma once

#include "conformance/adasum_reference.h"
#include "conformance/collectives_suite.h"
#include "conformance/status_checks.h"

namespace mydist::testing {

inline constexpr DataType kAdasumTypes[] = {DataType::kFloat16, DataType::kBfloat16,
                                            DataType::kFloat32, DataType::kFloat64};

// Tensors of `counts` elements fused, against the reference and against each alone.
inline void CheckAdasum(const Rank& me, const std::vector<int64_t>& counts,
                        const Reduction& reduction) {
  Elements fused(reduction.dtype, 0);
  for (size_t t = 0; t < counts.size(); ++t) {
    const Elements own = ContributionOf(reduction.dtype, me.rank, counts[t], t);
    fused.bytes.insert(fused.bytes.end(), own.bytes.begin(), own.bytes.end());
  }
  ExpectOk(me.collectives->AdasumAllreduce(fused.data(), counts, reduction));
  ExpectSameOnAllRanks(me, fused.bytes);
  int64_t offset = 0;
  for (size_t t = 0; t < counts.size(); ++t) {
    Elements alone = ContributionOf(reduction.dtype, me.rank, counts[t], t);
    ExpectOk(me.collectives->AdasumAllreduce(alone.data(), {&counts[t], 1}, reduction));
    const Elements part = SliceOf(fused, offset, counts[t]);
    EXPECT_TRUE(part.bytes == alone.bytes) << "fusing tensor " << t << " changed its bits";
    if (me.rank == static_cast<int>(t) % me.size) {
      ExpectAdasum(part, ContributionsOf(reduction.dtype, me.size, counts[t], t), reduction);
    }
    offset += counts[t];
  }
}

inline void RunAdasumConformance(const Rank& me, DataType dtype) {
  const Reduction plain{.dtype = dtype, .op = ReduceOp::kAdasum};
  CheckAdasum(me, {0}, plain);
  CheckAdasum(me, {1}, plain);
  CheckAdasum(me, {0, 1, 2, 7, 0, 1000, 33}, plain);
  CheckAdasum(me, {20011, 1, 5003}, plain);
  const Reduction scaled{
      .dtype = dtype, .op = ReduceOp::kAdasum, .prescale = 0.5, .postscale = -3.0};
  CheckAdasum(me, {3, 1001, 12}, scaled);
}

}  // namespace mydist::testing
