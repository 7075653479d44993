// RankOrderedCollectives: all collectives over any Transport, on host memory (reduce).
// Owned by the engine, which drives it from one thread at a time. Bytes move by direct exchange and
// are folded by the rank that owns a slice, in rank order or, where it is told of several hosts,
// host by host: a result is bitwise the same on every rank, over every backend, whichever algorithm
// was chosen, and with a Hierarchical. Scratch memory is bounded (see Limits), kept between calls,
// and never allocated again once the largest call has been seen.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "algorithms/adasum.h"
#include "algorithms/collectives.h"
#include "base/export.h"
#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/element.h"
#include "kernels/reduction.h"
#include "memory/fusion_buffer.h"
#include "transport/transport.h"
#include "world/topology.h"

namespace mydist {

// TwoLevelReduction: one reduction as two, inside hosts and between them, so that every factor is
// applied once and 16-bit floats are rounded once. Pure data; private to algorithms/.
struct TwoLevelReduction {
  Reduction on_host;  // With the prescale factor.
  Reduction across;   // With what comes after the fold.
  DataType dtype;     // Of the tensors.
  bool is_wide;       // Partial results are float32, though the tensors are not.

  explicit TwoLevelReduction(const Reduction& whole)
      : on_host(whole), across(whole), dtype(whole.dtype), is_wide(NeedsWidePartials(whole)) {
    on_host.postscale = 1.0;
    on_host.divisor = 1;
    across.prescale = 1.0;
    if (is_wide) on_host.dtype = across.dtype = DataType::kFloat32;
  }

  int64_t partial_bytes() const { return SizeOf(across.dtype); }  // Of one element.

 private:
  // Min and Max round nothing, unless they scale.
  static bool NeedsWidePartials(const Reduction& whole) {
    const bool picks = whole.op == ReduceOp::kMin || whole.op == ReduceOp::kMax;
    return IsHalfWidth(whole.dtype) && !(picks && !whole.ScalesBefore() && !whole.ScalesAfter());
  }
};

// HostOrderedFold: folds what all ranks of a set contribute, once it has come to one place, to the
// bits of a Hierarchical: in rank order inside each host, then host by host
// (docs/decisions/0012-hierarchy.md).
// Owned by a Collectives, called by the thread that drives it. Goes by tiles that stay in cache;
// its memory, a tile for each host and each rank, is kept between calls.
class HostOrderedFold {
 public:
  // Without two levels in `groups`: rank order, which is the same then.
  explicit HostOrderedFold(const HostGroups& groups);

  // sources[r]: `count` elements of rank r. `output` is one of them or overlaps none.
  Status Fold(std::span<const void* const> sources, void* output, int64_t count,
              const Reduction& reduction);

  int64_t scratch_capacity_bytes() const { return tiles_.capacity_bytes(); }

 private:
  void FoldTile(const Slice& tile, void* output, uint8_t* room, const TwoLevelReduction& reduction);

  const std::vector<std::vector<int>> members_;  // Of each host; empty: rank order.
  FusionBuffer tiles_;
  // Of the call in progress; kept between calls for their memory only.
  std::vector<const uint8_t*> sources_;     // Host by host.
  std::vector<const void*> contributions_;  // The tile of each, in the type that is folded.
  std::vector<const void*> partials_;       // The tile of each host.
};

// When which algorithm is used; must be equal on all ranks. Results do not depend on it.
struct RankOrderedLimits {
  // Allreduce and Reduce: up to this much received per rank, everybody (the root) gets everything
  // at once and folds it all (one message latency); beyond, each rank folds its slice and hands it
  // out (two latencies, but only 2 n (p - 1) / p bytes per rank).
  int64_t one_shot_bytes = int64_t{64} << 10;
  // Broadcast over more than two ranks: from here on the root deals out slices that the others pass
  // on to each other; below, a binomial tree.
  int64_t scatter_broadcast_bytes = int64_t{1} << 20;
  // Contributions of peers held at a time: scratch memory is at most this, or
  // minimum_round_bytes × (p - 1) where that is more, plus one page; a Reduce holds up to
  // 1 / (p - 1) of that more, several hosts a page for each host and rank. Adasum's is not
  // bounded: it has to see whole vectors.
  int64_t scratch_bytes = int64_t{8} << 20;
  int64_t minimum_round_bytes = int64_t{64} << 10;
};

class MYDIST_EXPORT RankOrderedCollectives final : public Collectives {
 public:
  // `transport` outlives this object; null for a job of one rank. `groups`: the
  // hosts of its ranks; not needed unless there are several, one with several ranks.
  explicit RankOrderedCollectives(Transport* transport, const RankOrderedLimits& limits = {},
                                  const HostGroups& groups = {});

  bool Supports(const BatchTraits& traits) const override;
  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override;
  Status AdasumAllreduce(void* data, std::span<const int64_t> counts,
                         const Reduction& reduction) override;
  Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                int root) override;
  Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts) override;
  Status Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                int root) override;
  Status Scatter(const void* input, std::span<const int64_t> byte_counts, void* output,
                 int root) override;
  Status Send(const void* data, int64_t bytes, int peer) override;
  Status Receive(void* data, int64_t bytes, int peer) override;
  Status Broadcast(void* data, int64_t bytes, int root) override;
  Status Alltoall(const void* input, std::span<const int64_t> send_bytes, void* output,
                  std::span<const int64_t> receive_bytes) override;
  Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                       const Reduction& reduction) override;
  Status Barrier() override;

  int64_t scratch_capacity_bytes() const {
    return contributions_.capacity_bytes() + result_.capacity_bytes() +
           fold_.scratch_capacity_bytes() + adasum_.scratch_capacity_bytes();
  }

 private:
  // Round `index` takes at most `limit` elements of every slice.
  struct Round {
    int64_t index;
    int64_t limit;
  };

  Status OneShotAllreduce(uint8_t* data, int64_t count, const Reduction& reduction);
  Status FoldOwnSlice(const uint8_t* input, uint8_t* output, const Reduction& reduction);
  Status FoldRound(const uint8_t* input, uint8_t* output, const Round& round,
                   const Reduction& reduction);
  int64_t RoundLimit(int64_t element_bytes) const;
  bool FitsOneShot(int64_t count, int64_t element_bytes) const;
  Status FoldAll(const uint8_t* input, uint8_t* output, int64_t count, const Reduction& reduction);
  Status FoldReceived(const uint8_t* own, const uint8_t* room, uint8_t* output, int64_t count,
                      const Reduction& reduction);
  Status ReduceRoundAtRoot(const uint8_t* input, uint8_t* output, const Round& round,
                           const Reduction& reduction);
  Status ReduceRoundFor(int root, const uint8_t* input, const Round& round,
                        const Reduction& reduction);
  Status BinomialBroadcast(uint8_t* data, int64_t bytes, int root);
  Status ScatterBroadcast(uint8_t* data, int64_t bytes, int root);
  void SplitAmongReceivers(int64_t bytes, int root);
  void SplitEvenly(int64_t count, int64_t element_bytes);
  Slice OwnSlice() const { return slices_[static_cast<size_t>(rank_)]; }

  const int rank_;
  const int size_;
  const RankOrderedLimits limits_;
  TransferBatch transfers_;
  Adasum adasum_;
  HostOrderedFold fold_;
  FusionBuffer contributions_;
  FusionBuffer result_;
  // Of each rank, of the call in progress; kept for their memory only.
  std::vector<Slice> slices_;  // In elements.
  std::vector<const void*> sources_;
};

}  // namespace mydist
