// PostOperation: what torch.distributed gives a caller for a send or a receive.
// Any thread may wait for it, in any order and several times.
#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "lanes/group_lane.h"

namespace mydist {

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
  int source_ = -1;
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
