// Collectives: the collective operations over contiguous memory of one dtype, within one set of
// ranks: every rank, root or peer is an index in the set.
// An algorithm overrides what it can do and says so in Supports; the rest is unsupported.
// Implementations carry no state a caller can see. The engine keeps an ordered list of them and
// takes the first that supports a batch. Called by the thread that drives the engine, one call at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/export.h"
#include "base/status.h"
#include "kernels/reduction.h"
#include "world/collective_op.h"

namespace mydist {

// What an implementation decides on whether it can run a batch.
struct BatchTraits {
  OpKind op;
  DataType dtype;
  ReduceOp reduce_op;
  int32_t device;  // -1: host memory.
  int64_t bytes;
};

// Memory is contiguous and stays valid during the call; pointers may be null when empty. A
// reduction is resolved here: its op is never kAverage, and kAdasum only in AdasumAllreduce. All
// ranks call the same operation in the same order with agreeing arguments. Every call blocks until
// the result is there. Errors: kPeerLost, kTimeout, kInternal; after one the instance must not be
// used again.
class MYDIST_EXPORT Collectives {
 public:
  virtual ~Collectives() = default;

  // All ranks come to the same. traits.bytes is 0 where it is not known, and may differ between
  // ranks in an allgather, gather, scatter or alltoall.
  virtual bool Supports(const BatchTraits& traits) const = 0;

  // What is not overridden goes to Inner(); without one it gives kInternal: the choice should have
  // fallen on another algorithm.

  // data[i] = reduction over ranks, in its order, of data[i]; in place, bitwise equal on all
  // ranks.
  virtual Status Allreduce(void* data, int64_t count, const Reduction& reduction);

  // Rank r contributes byte_counts[r] bytes; `output` gets all contributions in rank order. `input`
  // may already be our part of `output`, else they do not overlap.
  virtual Status Allgather(const void* input, void* output, std::span<const int64_t> byte_counts);

  // Like Allreduce, with the same bits, but not in place and only into `output` of rank `root`; the
  // others' `output` is not used. `input` is not changed, unless the root's `output` is its
  // `input`; otherwise they do not overlap.
  virtual Status Reduce(const void* input, void* output, int64_t count, const Reduction& reduction,
                        int root);

  // `data` holds tensors of counts[0], counts[1], … elements one after the other, each combined in
  // place on its own by adaptive summation (algorithms/adasum.h); bitwise equal on all ranks.
  // reduction.op is kAdasum.
  virtual Status AdasumAllreduce(void* data, std::span<const int64_t> counts,
                                 const Reduction& reduction);

  // Like Allgather, into `output` of rank `root` only; the others' is not used.
  virtual Status Gather(const void* input, void* output, std::span<const int64_t> byte_counts,
                        int root);

  // Rank r gets byte_counts[r] consecutive bytes, in rank order, of the root's `input` in `output`;
  // of the others only byte_counts[own rank] is read. No overlap.
  virtual Status Scatter(const void* input, std::span<const int64_t> byte_counts, void* output,
                         int root);

  // `data` (bytes long) goes to rank `peer`, another than ours, which receives as many at the same
  // time. Only the two take part.
  virtual Status Send(const void* data, int64_t bytes, int peer);
  virtual Status Receive(void* data, int64_t bytes, int peer);

  // `data` (bytes long) of rank `root` arrives in `data` of every rank.
  virtual Status Broadcast(void* data, int64_t bytes, int root);

  // send_bytes[r] consecutive bytes of `input` go to rank r; `output` gets receive_bytes[r] from
  // rank r, in rank order. No overlap.
  virtual Status Alltoall(const void* input, std::span<const int64_t> send_bytes, void* output,
                          std::span<const int64_t> receive_bytes);

  // `input` holds sum(counts) elements; rank r gets the reduction, in its order, of its counts[r]
  // elements in `output`, which may be our own part of `input`. Else they do not overlap, and
  // `input` is not changed.
  virtual Status Reducescatter(const void* input, void* output, std::span<const int64_t> counts,
                               const Reduction& reduction);

  // Returns when every rank has called it.
  virtual Status Barrier();

 protected:
  // What does the calls that a wrapper does not override; null: nothing does. Of bytes only moved
  // the dtype is kUint8; `bytes` is 0, as ranks may not know each other's.
  virtual Collectives* Inner(const BatchTraits& /*traits*/) const { return nullptr; }

 private:
  template <typename Call>
  Status Forward(const BatchTraits& traits, Call call);
};

// FirstOf: several implementations as one; each call goes to the first that supports it.
class MYDIST_EXPORT FirstOf final : public Collectives {
 public:
  // Not empty, best first; all span the same ranks.
  explicit FirstOf(std::vector<std::unique_ptr<Collectives>> choices);

  bool Supports(const BatchTraits& traits) const override { return Find(traits) != nullptr; }

 private:
  Collectives* Find(const BatchTraits& traits) const;  // Null: none supports it.
  Collectives* Inner(const BatchTraits& traits) const override;

  const std::vector<std::unique_ptr<Collectives>> choices_;
};

}  // namespace mydist
