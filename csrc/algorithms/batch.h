// Batch: executes one fused batch (fuse → reduce → hand back) through a Collectives.
// Called by the thread that drives the engine, one call at a time; blocks until the results are in
// the tensors' own memory, or, on a GPU, are sure to be there for what follows on its stream. All
// ranks execute the same batches in the same order with agreeing arguments. A batch of one tensor
// works on the tensor's memory, and so does an allreduce of tensors whose outputs lie as they would
// be packed; more are packed into the fusion buffer, as is what is cast.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "algorithms/collectives.h"
#include "base/export.h"
#include "base/status.h"
#include "kernels/conversion.h"
#include "kernels/reduction.h"
#include "memory/fusion_buffer.h"

namespace mydist {

// Called when a phase of the batch begins, with its name for the timeline: one of the k…Activity
// constants. The last phase ends when Execute… returns.
using ActivitySink = std::function<void(const char* activity)>;

inline constexpr const char* kPackActivity = "MEMCPY_IN_FUSION_BUFFER";
inline constexpr const char* kUnpackActivity = "MEMCPY_OUT_FUSION_BUFFER";
inline constexpr const char* kCopyActivity = "MEMCPY_OUTPUT";      // Input to output, out of place.
inline constexpr const char* kReduceActivity = "REDUCE";           // Whatever reduces.
inline constexpr const char* kMoveActivity = "MOVE";               // Whatever only moves bytes.
inline constexpr const char* kSplitsActivity = "EXCHANGE_SPLITS";  // Alltoall and scatter.

// Ranks, roots and peers are indices in the set of ranks that `collectives` spans.
struct BatchContext {
  int rank = 0;
  int size = 1;
  // None of them null. `numbers` spans the same ranks and takes host memory: it is `collectives`,
  // unless the tensors are on a GPU.
  Collectives* collectives = nullptr;
  Collectives* numbers = nullptr;
  BatchMemory* memory = nullptr;
  ActivitySink activity;  // May be empty.
  // Counts what allreduces copy into the fusion buffer; may be null.
  int64_t* pack_bytes = nullptr;

  void Begin(const char* name) const;
  Status Copy(const ConvertSegments& segments) const { return Cast(segments, kCopyOfBytes); }
  Status Cast(const ConvertSegments& segments, const Conversion& conversion) const {
    return segments.empty() ? Status::Ok() : memory->Convert(segments, conversion);
  }
};

// Contiguous tensors. Pointers may be null when the tensor is empty there. output == input is in
// place (allreduce, broadcast, and reduce on its root); otherwise they do not overlap and `input`
// is not changed.
struct BatchTensor {
  const void* input = nullptr;
  void* output = nullptr;
  int64_t element_count = 0;
  // Allreduce of float16 or bfloat16: here the elements are float32. What packs and unpacks them
  // casts them (compression), each way with one rounding.
  bool is_wide = false;
};

struct GatherTensor {
  const void* input = nullptr;       // byte_counts[rank] bytes.
  void* output = nullptr;            // sum(byte_counts) bytes; ordered by rank.
  std::vector<int64_t> byte_counts;  // Of every rank's contribution.
};

struct ScatterTensor {
  const void* input = nullptr;          // sum(element_counts) elements.
  void* output = nullptr;               // element_counts[rank] elements.
  std::vector<int64_t> element_counts;  // That each rank gets; ScatterRowCounts × row size.
};

struct AlltoallTensor {
  const void* input = nullptr;
  int64_t row_bytes = 0;           // 0 for rows without elements: they are counted all the same.
  std::vector<int64_t> send_rows;  // For each rank, consecutive in `input`.
  // Told once how many rows each rank sends us; returns memory for all of them (null when they are
  // empty), or the error that ends the operation.
  std::function<Result<void*>(std::span<const int64_t> receive_rows)> allocate;
};

// Cut by rows from the root to everybody; only the root knows the cut.
struct DealTensor {
  const void* input = nullptr;     // At the root: sum(send_rows) rows; else not used.
  int64_t row_bytes = 0;           // As in AlltoallTensor; the same on all ranks.
  std::vector<int64_t> send_rows;  // At the root: for each rank. Else not used.
  // Told once how many rows we get; as in AlltoallTensor.
  std::function<Result<void*>(int64_t own_rows)> allocate;
};

// Errors of all: those of Collectives, and kInternal when the fusion buffer cannot grow.
// kInvalidArgument when a reduction has no meaning (Reduction::Validate) or a wide tensor is to
// be reduced as anything but 16-bit floats; nothing was moved then.
// `reduction.op` may be kAverage, and in an allreduce kAdasum: then every tensor is combined on its
// own, with the same bits whether it is fused or not.
MYDIST_EXPORT Status ExecuteAllreduce(std::span<const BatchTensor> tensors,
                                      const Reduction& reduction, const BatchContext& context);

MYDIST_EXPORT Status ExecuteAllgather(std::span<const GatherTensor> tensors,
                                      const BatchContext& context);

// `element_bytes`: of one element of every tensor. `root` is an index below context.size. Only the
// root's `input` is read; every rank's `output` gets it (the root's too, when not in place).
MYDIST_EXPORT Status ExecuteBroadcast(std::span<const BatchTensor> tensors, int64_t element_bytes,
                                      int root, const BatchContext& context);

MYDIST_EXPORT Status ExecuteReducescatter(std::span<const ScatterTensor> tensors,
                                          const Reduction& reduction, const BatchContext& context);

MYDIST_EXPORT Status ExecuteAlltoall(const AlltoallTensor& tensor, const BatchContext& context);

// Only the root's `output` is written; elsewhere it may be null.
MYDIST_EXPORT Status ExecuteReduce(const BatchTensor& tensor, const Reduction& reduction, int root,
                                   const BatchContext& context);

MYDIST_EXPORT Status ExecuteScatter(const DealTensor& tensor, int root,
                                    const BatchContext& context);

}  // namespace mydist
