// GradientSlots: the memory in which gradients lie side by side while they are reduced, so that a
// batch of neighbours is reduced without packing. On a GPU it comes from torch.
// Owned by the GradientReducer; called with the GIL held. Every slot is a storage of its own, which
// keeps the memory alive; a tensor over it looks like any other. A slot that another tensor still
// holds, a kept reference to an earlier gradient, say, is never given out.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace mydist {

class GradientSlots {
 public:
  struct Extent {
    size_t index;  // Of the parameter, once.
    at::Device device;
    at::ScalarType dtype;
    int64_t element_count;
  };

  // Gives slots to these, those of one device and dtype one after the other. Throws when there is
  // no memory; nothing has changed then.
  void Add(std::span<const Extent> extents);

  // Whether the tensor's elements lie in the slot of this parameter, as they would travel.
  bool Holds(size_t index, const at::Tensor& tensor) const;

  // A tensor of this shape over the slot, with whatever was in it last. Undefined when there is no
  // slot that fits, or when it is held.
  at::Tensor Take(size_t index, at::IntArrayRef sizes, at::ScalarType dtype,
                  const at::Device& device) const;

  // This parameter has no slot from now on. The memory goes when no tensor is in any slot of it.
  void GiveUp(size_t index);

  // Of all slots that have not been given up.
  int64_t bytes() const { return bytes_; }
  // Where those on GPUs lie, as torch knows it; lets go of what no tensor uses any more.
  std::vector<c10::Storage> GpuMemory();

 private:
  struct Slot {
    c10::Storage storage;
    const void* place = nullptr;  // Where the storage was made; it may be given other memory.
    at::ScalarType dtype{};
  };
  const Slot* Find(size_t index) const;

  std::vector<c10::Storage> gpu_memory_;
  std::vector<Slot> slots_;  // By parameter; without storage where there is no slot.
  int64_t bytes_ = 0;
};

// A tensor of this many bytes on the CPU, where the other ranks of this host can reach it if there
// is such a place: collectives read it where it lies. Throws when there is no memory.
at::Tensor EmptyInReach(int64_t bytes);

// Whether the tensor object may be given other memory: it is an ordinary one, and no other one
// looks at what it has. `is_fresh`: autograd has made it, so no program can have meant to.
bool CanMove(const at::Tensor& tensor, bool is_fresh);

// Gradients can be views of one tensor (autograd's of a cat or stack, or a flat buffer of the
// user's): then they share its version, which any of them advances.
bool HasMemoryOfItsOwn(const at::Tensor& tensor);

// Whether Python code has ever had this tensor in its hands. True when this torch does not tell.
bool IsKnownToPython(const at::Tensor& tensor);

// Advanced by whatever changes the tensor through torch.
int64_t VersionOf(const at::Tensor& tensor);

// GradientBuckets: which parameters are enqueued together, and when a bucket is due: as soon as
// every member that is expected to get a gradient in this step has it. Parameters are numbers here.
// Owned by the GradientReducer, which calls it with the GIL held. Pure.
class GradientBuckets {
 public:
  // More buckets, behind those there are; no parameter twice.
  void Add(std::vector<std::vector<size_t>> buckets);

  bool Has(size_t parameter) const;
  size_t count() const { return buckets_.size(); }
  std::span<const size_t> Members(size_t bucket) const { return buckets_[bucket].members; }

  // The parameter, which has a bucket, has its gradient. Gives that bucket when it is due, and
  // every time after that: what comes unexpected must not wait for the end of the step.
  // `is_expected` is asked for all members once per step.
  std::optional<size_t> Ready(size_t parameter,
                              const std::function<bool(size_t parameter)>& is_expected);
  // Whether all buckets were due in this step.
  bool AllDue() const { return due_count_ == buckets_.size(); }

  void NextStep();
  void Clear();

 private:
  struct Bucket {
    std::vector<size_t> members;
    bool is_open = false;
    std::vector<size_t> awaited;  // Of the members, once it is open.
  };

  std::vector<Bucket> buckets_;
  std::vector<std::optional<size_t>> bucket_of_;  // By parameter.
  size_t due_count_ = 0;
};

}  // namespace mydist
