// Executor: the reduce step. Turns one fused group of agreed tensors into one call of ops/batch.
// Owned by the engine, called by whoever drives it; blocks until the results are in the outputs.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "controller/response.h"
#include "ops/batch.h"
#include "ops/collectives.h"
#include "ops/fusion_buffer.h"
#include "runtime/pending_table.h"

namespace mydist {

// A tensor the group needs: what all ranks agreed on, and our own memory for it.
struct AgreedTensor {
  const Agreement* agreement = nullptr;
  PendingTensor* pending = nullptr;
};

class Executor {
 public:
  // `collectives`: in order of preference; the first that supports a group runs it.
  Executor(int rank, int size, std::vector<std::unique_ptr<Collectives>> collectives);

  // Not empty; all of one kind, dtype, reduction and root, as the fusion planner grouped them.
  // kInternal when no implementation supports the group or memory for an output cannot be had; else
  // the errors of Collectives. Any error leaves the ranks out of step: the engine must stop.
  Status Execute(std::span<const AgreedTensor> group, const ActivitySink& activity);

 private:
  Result<BatchContext> ContextFor(std::span<const AgreedTensor> group,
                                  const ActivitySink& activity);
  Status Allreduce(std::span<const AgreedTensor> group, const BatchContext& context);
  Status Allgather(std::span<const AgreedTensor> group, const BatchContext& context);
  Status Broadcast(std::span<const AgreedTensor> group, const BatchContext& context);
  Status Alltoall(const AgreedTensor& tensor, const BatchContext& context);
  Status Reducescatter(std::span<const AgreedTensor> group, const BatchContext& context);

  const int rank_;
  const int size_;
  std::vector<std::unique_ptr<Collectives>> collectives_;
  FusionBuffer fusion_buffer_;
};

}  // namespace mydist
