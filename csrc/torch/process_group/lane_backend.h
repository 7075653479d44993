// LaneBackend: the backend "mydist" of torch.distributed, one for each process group. Every call
// becomes an operation of the group's lane. Tensors may have any layout; roots and peers are ranks
// of the group.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/mutex.h"
#include "lanes/group_lane.h"
#include "torch/process_group/lane_work.h"

namespace mydist {

class LaneBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Whose group it is: the members as ranks of the program, and how many ranks that has.
  struct Members {
    int rank = 0;  // In the group.
    std::vector<int> world_ranks;
    int world_size = 1;
    bool prefers_mpi = false;
    int rank_ends = -1;  // mydistrun's descriptor.
  };

  // Connects the members. Throws DistBackendError.
  LaneBackend(const c10::intrusive_ptr<c10d::Store>& store, const Members& members,
              std::chrono::milliseconds timeout, const std::string& name);
  ~LaneBackend() override;

  const std::string getBackendName() const override { return "mydist"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  // Null for a rank that is not among `ranks`. Collective over those that are.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& opts) override;
  bool supportsCoalescing() const override { return true; }
  // Each thread has operations of its own.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return lane_->sequence(); }
  void abort() override;
  void shutdown() override;
  // What the group failed with: its own time-out, what another rank had, or anything else.
  c10d::ErrorType getError() override;
  // Names every rank that does not come, with and without `waits_for_all`. Blocks.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool waits_for_all) override;

  // Called before the operations. The hook follows each collective, on the thread that executed it.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override {}  // Each operation has its duration in any case.

  // Memory of the host: see docs/decisions/0026-lanes.md for why it is not that of the group.
  bool supportsTensorAlloc(c10::DeviceIndex index) override { return index < 0; }
  at::Tensor allocateTensor(long count, at::TensorOptions options) override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  // What differs between calls, for Submit.
  struct Plan {
    c10d::OpType type;
    const char* title;
    LaneCall call;
    std::chrono::milliseconds timeout;
    bool is_async;
    Tensors inputs;   // Kept until the operation is done, as the outputs are.
    Tensors outputs;  // What the future holds.
  };

  WorkPtr Submit(Plan plan, LaneWork::Run run);
  // Remembers it while this thread's operations are coalesced.
  WorkPtr Note(WorkPtr work) MYDIST_EXCLUDES(coalesced_mutex_);
  // Of an operation: its own, or that of the group.
  std::chrono::milliseconds LimitOf(std::chrono::milliseconds timeout) const;
  WorkPtr ReceiveFrom(const Tensors& tensors, int source, int tag);
  // Throws DistBackendError in a forked child.
  void CheckProcess() const;
  // Throws ValueError unless it is a member.
  void CheckRoot(const char* call, int root) const;
  // Throws ValueError unless it is another member.
  void CheckPeer(const char* call, int peer) const;
  WorkPtr ReduceAll(Tensors& tensors, const c10d::AllreduceOptions& opts, c10d::OpType type);
  WorkPtr GatherAll(Tensors outputs, const at::Tensor& input, const c10d::AllgatherOptions& opts,
                    c10d::OpType type);
  WorkPtr ReduceAndScatter(const at::Tensor& output, Tensors inputs,
                           const c10d::ReduceScatterOptions& opts, c10d::OpType type);
  WorkPtr ExchangeAll(Tensors outputs, Tensors inputs, const c10d::AllToAllOptions& opts,
                      c10d::OpType type);

  const Members members_;
  const c10::intrusive_ptr<Options> options_;
  std::shared_ptr<GroupLane> lane_;
  std::shared_ptr<CompletionHook> hook_;  // Null: there is none.
  std::atomic<uint64_t> submitted_count_{0};
  std::atomic<uint64_t> barrier_count_{0};  // Monitored ones.
  Mutex coalesced_mutex_;
  // Since the thread's startCoalescing.
  std::map<std::thread::id, std::vector<WorkPtr>> coalesced_ MYDIST_GUARDED_BY(coalesced_mutex_);
};

}  // namespace mydist
