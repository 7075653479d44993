// LaneOperation: what torch.distributed gives a caller for an operation of a lane.
// Any thread may wait for it, in any order and several times. Dropping it neither waits nor
// cancels.
#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "lanes/group_lane.h"

namespace mydist {

// DistBackendError with the text of the status.
std::exception_ptr ToDistError(const Status& status);
// Throws it, where the status is not OK.
void ThrowIfDistError(const Status& status);
template <typename T>
T ValueOrDistError(Result<T> result) {
  ThrowIfDistError(result.status());
  return std::move(result).value();
}

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
  // Called by the thread that drives the lane: when it moves data, and when it is done. Callbacks
  // of the future run in Complete.
  void Begin() { began_ = Now(); }
  void Complete(const Status& status);
  // Of an operation that is complete, for the hook. The work may not be known yet, so the caller
  // has the number.
  std::shared_ptr<c10d::WorkInfo> Info(uint64_t number) const;

  bool isCompleted() override { return work_->is_done(); }
  bool isSuccess() const override { return work_->is_done() && work_->status().ok(); }
  // Zero waits as long as the operation may take. Throws what the operation failed with, and
  // DistBackendError when `timeout` is over before.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return work_->sequence(); }
  // Milliseconds of moving data, once it is done.
  float getDuration() const override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const std::shared_ptr<GroupLane> lane_;
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  const TimePoint submitted_ = Now();
  TimePoint began_ = kNever;
  TimePoint ended_ = kNever;
  std::shared_ptr<LaneWork> work_;
};

// CompletionHook: a function that a backend calls after each operation, and the wait for its calls.
// Shared by the backend and its operations, which may outlive it.
class CompletionHook {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  explicit CompletionHook(Hook hook) : hook_(std::move(hook)) {}

  // An operation has been submitted; Call follows.
  void Expect() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++pending_count_;
  }
  // An error of the hook is a line in the log: no caller waits for it.
  void Call(const std::shared_ptr<c10d::WorkInfo>& info) MYDIST_EXCLUDES(mutex_);
  // Until no call is pending.
  void Wait() MYDIST_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (pending_count_ > 0) changed_.Wait(mutex_);
  }

 private:
  const Hook hook_;
  Mutex mutex_;
  CondVar changed_;
  int64_t pending_count_ MYDIST_GUARDED_BY(mutex_) = 0;
};

// PostOperation: what torch.distributed gives a caller for a send or a receive.
// Any thread may wait for it, in any order and several times.
class PostOperation final : public c10d::Work {
 public:
  // Sends the tensor now; the receiver may come later. Throws DistBackendError.
  static c10::intrusive_ptr<PostOperation> Send(const std::shared_ptr<GroupLane>& lane,
                                                const at::Tensor& tensor, int peer, int tag);
  // `source` may be LanePosts::kAnySource. After `limit` a caller that waits gets an error.
  static c10::intrusive_ptr<PostOperation> Receive(const std::shared_ptr<GroupLane>& lane,
                                                   const at::Tensor& tensor, int source, int tag,
                                                   std::chrono::milliseconds limit);

  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return {tensor_}; }
  uint64_t getSequencenumber() const override { return ticket_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  // Use Send and Receive.
  PostOperation(std::shared_ptr<GroupLane> lane, c10d::OpType type, const char* title,
                const at::Tensor& tensor, std::chrono::milliseconds limit);

 private:
  // The outcome of a receive, in the tensor.
  Status TakeIn(const Status& status, int source, const Bytes& payload);
  // Wakes the callers that wait. The result is what completes the future, with its callbacks.
  LanePosts::Follow Complete(const Status& status);

  const std::shared_ptr<GroupLane> lane_;
  const at::Tensor tensor_;
  const TimePoint deadline_;
  const std::chrono::milliseconds limit_;
  // Guarded by mutex_. The future is made by the first getFuture: without one, nothing follows.
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool is_over_ = false;  // A later future is complete at once.
  int tag_ = 0;
  int64_t record_ = FlightRecorder::kNoRecord;
  std::string source_text_;  // "group '0': no message from rank 1 with tag 0".
  int source_ = -1;          // Whose message has come.
  int awaited_ = -1;         // Whose is to come.
  LanePosts::Ticket ticket_ = 0;
};

// SeveralWorks: all operations between startCoalescing and endCoalescing. Its future is that of the
// last one.
class SeveralWorks final : public c10d::Work {
 public:
  explicit SeveralWorks(std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(-1, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : works_) work->wait(timeout);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  bool isCompleted() override {
    for (const auto& work : works_) {
      if (!work->isCompleted()) return false;
    }
    return true;
  }
  bool isSuccess() const override {
    for (const auto& work : works_) {
      if (!work->isSuccess()) return false;
    }
    return true;
  }
  std::vector<at::Tensor> result() override { return works_.back()->result(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return works_.back()->getFuture();
  }

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace mydist
