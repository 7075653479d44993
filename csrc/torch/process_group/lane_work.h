// LaneOperation: what torch.distributed gives a caller for an operation of a lane.
// Any thread may wait for it, in any order and several times. Dropping it neither waits nor
// cancels.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "lanes/group_lane.h"

namespace mydist {

// DistBackendError with the text of the status.
std::exception_ptr ToDistError(const Status& status);

// A future of a list of tensors, to be completed.
c10::intrusive_ptr<c10::ivalue::Future> NewFuture();
// With the tensors, or with the error if there is one.
void CompleteFuture(c10::ivalue::Future& future, const std::vector<at::Tensor>& tensors,
                    const std::exception_ptr& error);

class LaneOperation final : public c10d::Work {
 public:
  // `title`: for the profiler, such as "mydist:all_reduce"; a literal.
  LaneOperation(std::shared_ptr<GroupLane> lane, c10d::OpType type, const char* title,
                const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs);

  // Called once, right after the operation has been submitted.
  void SetWork(std::shared_ptr<LaneWork> work) { work_ = std::move(work); }
  // Called by the thread that drives the lane: callbacks of the future run here.
  void Complete(const Status& status);

  bool isCompleted() override { return work_->is_done(); }
  bool isSuccess() const override { return work_->is_done() && work_->status().ok(); }
  // Zero waits as long as the operation may take. Throws what the operation failed with, and
  // DistBackendError when `timeout` is over before.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return work_->sequence(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const std::shared_ptr<GroupLane> lane_;
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::shared_ptr<LaneWork> work_;
};

}  // namespace mydist
