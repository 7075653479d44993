#include "torch/process_group/lane_work.h"

#include <c10/util/Exception.h>

#include <utility>

namespace mydist {

std::exception_ptr ToDistError(const Status& status) {
  return std::make_exception_ptr(c10::DistBackendError(
      {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, status.ToString()));
}

LaneOperation::LaneOperation(std::shared_ptr<GroupLane> lane, c10d::OpType type, const char* title,
                             const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> outputs)
    : Work(lane->rank(), type, title, inputs),
      lane_(std::move(lane)),
      outputs_(std::move(outputs)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
}

void LaneOperation::Complete(const Status& status) {
  const std::exception_ptr error = status.ok() ? nullptr : ToDistError(status);
  finish(error);
  if (error != nullptr) {
    future_->setError(error);
  } else {
    future_->markCompleted(c10::IValue(outputs_));
  }
}

bool LaneOperation::wait(std::chrono::milliseconds timeout) {
  if (!work_->is_done()) {  // Only the process that submitted it may execute it.
    if (Status status = lane_->CheckProcess(); !status.ok()) {
      std::rethrow_exception(ToDistError(status));
    }
  }
  const TimePoint deadline = timeout == kNoTimeout ? kNever : Now() + timeout;
  if (!lane_->Wait(*work_, deadline)) {
    std::rethrow_exception(
        ToDistError(Status::Timeout("wait() ended after " + std::to_string(timeout.count()) +
                                    " ms, while the operation is still under way")));
  }
  if (!work_->status().ok()) std::rethrow_exception(exception());
  return true;
}

}  // namespace mydist
