#include "torch/process_group/lane_work.h"

#include <c10/util/Exception.h>

#include <utility>

#include "base/log.h"

namespace mydist {

std::exception_ptr ToDistError(const Status& status) {
  return std::make_exception_ptr(c10::DistBackendError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, status.ToString()));
}

void ThrowIfDistError(const Status& status) {
  if (!status.ok()) std::rethrow_exception(ToDistError(status));
}

c10::intrusive_ptr<c10::ivalue::Future> NewFuture() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

void CompleteFuture(c10::ivalue::Future& future, const std::vector<at::Tensor>& tensors,
                    const std::exception_ptr& error) {
  if (error != nullptr) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(tensors));
  }
}

LaneOperation::LaneOperation(std::shared_ptr<GroupLane> lane, c10d::OpType type, const char* title,
                             const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs)
    : Work(lane->rank(), type, title, inputs),
      lane_(std::move(lane)),
      outputs_(std::move(outputs)),
      future_(NewFuture()) {}

void LaneOperation::Complete(const Status& status) {
  ended_ = Now();
  const std::exception_ptr error = status.ok() ? nullptr : ToDistError(status);
  finish(error);
  CompleteFuture(*future_, outputs_, error);
}

float LaneOperation::getDuration() const {
  // Also for completion hooks, before callers that wait are woken.
  const std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(completed_, "mydist: getDuration() of an operation that is still under way");
  if (began_ == kNever) return 0;  // It failed before.
  return std::chrono::duration<float, std::milli>(ended_ - began_).count();
}

std::shared_ptr<c10d::WorkInfo> LaneOperation::Info(uint64_t number) const {
  const Duration active = began_ == kNever ? Duration::zero() : ended_ - began_;
  return std::make_shared<c10d::WorkInfo>(retrieveOpType(), number, submitted_, ended_, active);
}

void CompletionHook::Call(const std::shared_ptr<c10d::WorkInfo>& info) {
  try {
    hook_(info);
  } catch (const std::exception& error) {
    MYDIST_LOG(kError) << "the completion hook of a process group raised an error: "
                       << error.what();
  }
  MutexLock lock(mutex_);
  --pending_count_;
  changed_.NotifyAll();
}

bool LaneOperation::wait(std::chrono::milliseconds timeout) {
  if (!work_->is_done()) {  // Only the process that submitted it may execute it.
    ThrowIfDistError(lane_->CheckProcess());
  }
  const TimePoint deadline = timeout == kNoTimeout ? kNever : Now() + timeout;
  if (!lane_->Wait(*work_, deadline)) {
    ThrowIfDistError(Status::Timeout("wait() ended after " + SecondsText(Duration(timeout)) +
                                     ", while the operation is still under way"));
  }
  if (!work_->status().ok()) std::rethrow_exception(exception());
  return true;
}

}  // namespace mydist
