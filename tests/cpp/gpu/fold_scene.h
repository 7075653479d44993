// FoldScene: made-up contributions of ranks in pieces of memory with guards, and what a fold must
// leave there: the bits of ReduceInRankOrder, and in numbers what float64 gives. Where the memory
// lies is the test's business: on the host or on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/reduction_reference.h"
#include "kernels/rank_fold.h"
#include "kernels/reduction.h"

namespace mydist::testing {

struct FoldLayout {
  int size = 2;
  int rank = 0;
  int64_t count = 0;
  bool is_in_place = false;
  // From an aligned address to our contribution, and to the output; in elements.
  int64_t own_shift = 0;
  int64_t output_shift = 0;
};

class FoldScene {
 public:
  // A reduction as callers have it: not resolved.
  FoldScene(const Reduction& reduction, const FoldLayout& layout, uint64_t salt = 0)
      : reduction_(reduction),
        layout_(layout),
        inputs_(ContributionsOf(reduction.dtype, layout.size, layout.count, salt)),
        own_begin_(layout.own_shift * SizeOf(reduction.dtype)),
        output_begin_(layout.is_in_place ? own_begin_
                                         : layout.output_shift * SizeOf(reduction.dtype)),
        bytes_(layout.count * SizeOf(reduction.dtype)),
        stride_(RankFold::Stride(bytes_)),
        own_(Guarded(own_begin_)),
        others_(static_cast<size_t>(stride_ * (layout.size - 1)), kPoison) {
    for (int rank = 0; rank < layout.size; ++rank) {
      const std::vector<uint8_t>& input = inputs_[static_cast<size_t>(rank)].bytes;
      std::copy(input.begin(), input.end(),
                rank == layout.rank
                    ? own_.begin() + own_begin_
                    : others_.begin() + RankFold::Offset(rank, layout.rank, stride_));
    }
  }

  // What lies in memory before the fold, from aligned addresses on.
  const std::vector<uint8_t>& own() const { return own_; }
  const std::vector<uint8_t>& others() const { return others_; }
  std::vector<uint8_t> PoisonedOutput() const { return Guarded(output_begin_); }

  // In place nothing is written to `output`.
  RankFold In(uint8_t* own, const uint8_t* others, uint8_t* output) const {
    return {.own = own + own_begin_,
            .others = others,
            .stride = stride_,
            .rank = layout_.rank,
            .size = layout_.size,
            .output = (layout_.is_in_place ? own : output) + output_begin_,
            .count = layout_.count,
            .reduction = reduction_.Resolved(layout_.size)};
  }

  // What lies there afterwards.
  void Check(const std::vector<uint8_t>& own, const std::vector<uint8_t>& others,
             const std::vector<uint8_t>& output) const {
    SCOPED_TRACE(std::string(ReduceOpName(reduction_.op)) + " of " + std::to_string(layout_.count) +
                 " " + std::string(DataTypeName(reduction_.dtype)) + ", rank " +
                 std::to_string(layout_.rank) + " of " + std::to_string(layout_.size));
    const std::vector<uint8_t>& written = layout_.is_in_place ? own : output;
    Elements result(reduction_.dtype, layout_.count);
    std::copy_n(written.begin() + output_begin_, bytes_, result.bytes.begin());

    Elements expected(reduction_.dtype, layout_.count);
    std::vector<const void*> sources;
    for (const Elements& input : inputs_) sources.push_back(input.data());
    ReduceInRankOrder(sources, expected.data(), layout_.count, reduction_.Resolved(layout_.size));
    EXPECT_TRUE(result.bytes == expected.bytes) << "other bits than the host's";
    ExpectReduced(result, inputs_, reduction_);

    std::vector<uint8_t> around = Guarded(output_begin_);
    if (layout_.is_in_place) around = own_;
    std::copy_n(expected.bytes.begin(), bytes_, around.begin() + output_begin_);
    EXPECT_TRUE(written == around) << "wrote beyond the output";
    EXPECT_TRUE(others == others_) << "changed what others have handed in";
    if (!layout_.is_in_place) {
      EXPECT_TRUE(own == own_) << "changed the input";
    }
  }

 private:
  static constexpr uint8_t kPoison = 0xA5;
  static constexpr int64_t kGuardBytes = 64;

  std::vector<uint8_t> Guarded(int64_t begin) const {
    return std::vector<uint8_t>(static_cast<size_t>(begin + bytes_ + kGuardBytes), kPoison);
  }

  const Reduction reduction_;
  const FoldLayout layout_;
  const std::vector<Elements> inputs_;
  const int64_t own_begin_;
  const int64_t output_begin_;
  const int64_t bytes_;
  const int64_t stride_;
  std::vector<uint8_t> own_;
  std::vector<uint8_t> others_;
};

// Every reduction that there is, with and without factors.
inline std::vector<Reduction> EveryFold() {
  std::vector<Reduction> reductions;
  for (const DataType dtype : kAllDataTypes) {
    for (const ReduceOp op : kAllReduceOps) {
      if (!FoldsOnDevice(op, dtype)) continue;
      Reduction reduction{.dtype = dtype, .op = op};
      reductions.push_back(reduction);
      if (dtype == DataType::kBool) continue;
      reduction.prescale = 0.7;
      reduction.postscale = 3.25;
      reductions.push_back(reduction);
    }
  }
  return reductions;
}

}  // namespace mydist::testing
