#include "torch/process_group/lane_work.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "torch/process_group/dense_tensors.h"
#include "world/progress.h"

namespace mydist {

std::exception_ptr ToDistError(const Status& status) {
  return std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                            status.WithSentence(ProgressText(status.failure())).ToString()));
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

PostOperation::PostOperation(std::shared_ptr<GroupLane> lane, c10d::OpType type, const char* title,
                             const at::Tensor& tensor, std::chrono::milliseconds limit)
    : Work(lane->rank(), type, title, std::vector<at::Tensor>{tensor}),
      lane_(std::move(lane)),
      tensor_(tensor),
      deadline_(Now() + limit),
      limit_(limit) {}

c10::intrusive_ptr<PostOperation> PostOperation::Send(const std::shared_ptr<GroupLane>& lane,
                                                      const at::Tensor& tensor, int peer, int tag) {
  const at::Tensor dense = Dense(tensor);
  const auto* const begin = static_cast<const uint8_t*>(dense.const_data_ptr());
  ThrowIfDistError(lane->posts().Send(peer, tag, {begin, dense.nbytes()}));
  lane->NoteSent(peer, tag, static_cast<int64_t>(dense.nbytes()));
  auto operation = c10::make_intrusive<PostOperation>(lane, c10d::OpType::SEND, "mydist:send",
                                                      tensor, std::chrono::milliseconds(0));
  operation->Complete(Status::Ok());
  return operation;
}

c10::intrusive_ptr<PostOperation> PostOperation::Receive(const std::shared_ptr<GroupLane>& lane,
                                                         const at::Tensor& tensor, int source,
                                                         int tag, std::chrono::milliseconds limit) {
  const bool is_any = source == LanePosts::kAnySource;
  auto operation = c10::make_intrusive<PostOperation>(
      lane, is_any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
      is_any ? "mydist:recvAnySource" : "mydist:recv", tensor, limit);
  operation->source_text_ = "group '" + lane->name() + "': no message from " +
                            (is_any ? "any rank" : "rank " + std::to_string(source)) +
                            " with tag " + std::to_string(tag);
  operation->tag_ = tag;
  operation->awaited_ = source;
  operation->record_ = lane->NoteAwaited(source, tag, static_cast<int64_t>(tensor.nbytes()));
  operation->ticket_ = lane->posts().Receive(
      source, tag, [operation](const Status& status, int from, const Bytes& payload) {
        operation->lane_->NoteReceived(operation->record_, from, operation->tag_,
                                       static_cast<int64_t>(payload.size()), status);
        return operation->Complete(operation->TakeIn(status, from, payload));
      });
  return operation;
}

Status PostOperation::TakeIn(const Status& status, int source, const Bytes& payload) {
  if (!status.ok()) {
    const bool is_named = status.message().starts_with("group '");
    return is_named ? status : status.WithContext(source_text_);
  }
  source_ = source;
  if (payload.size() != tensor_.nbytes()) {
    return Status::Mismatch(
        "rank " + std::to_string(source) + " of the group sent " + std::to_string(payload.size()) +
        " bytes, but the tensor to receive has " + std::to_string(tensor_.nbytes()) +
        "; send and receive the same shape and dtype");
  }
  const c10::InferenceMode no_graph(false);
  const at::NoGradGuard no_grad;
  return CaughtFrom([&] {
    const InOrder memory({tensor_});
    if (!payload.empty()) std::memcpy(memory.data(), payload.data(), payload.size());
    return memory.CopyBack();
  });
}

LanePosts::Follow PostOperation::Complete(const Status& status) {
  const std::exception_ptr error = status.ok() ? nullptr : ToDistError(status);
  finish(error);
  const std::lock_guard<std::mutex> lock(mutex_);
  is_over_ = true;
  if (future_ == nullptr) return nullptr;
  return [future = future_, tensor = tensor_, error] { CompleteFuture(*future, {tensor}, error); };
}

c10::intrusive_ptr<c10::ivalue::Future> PostOperation::getFuture() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (future_ != nullptr) return future_;
  future_ = NewFuture();
  const bool is_late = is_over_;
  const std::exception_ptr error = exception_;
  lock.unlock();
  if (is_late) CompleteFuture(*future_, {tensor_}, error);
  return future_;
}

bool PostOperation::wait(std::chrono::milliseconds timeout) {
  const TimePoint begin = Now();
  const bool is_short = timeout != kNoTimeout && begin + timeout < deadline_;
  const TimePoint end = is_short ? begin + timeout : deadline_;
  Duration next_warning{};
  std::unique_lock<std::mutex> lock(mutex_);
  const auto is_over = [this] { return completed_; };
  while (!cv_.wait_until(lock, std::min(end, Now() + kLookInterval), is_over)) {
    lock.unlock();
    const TimePoint now = Now();
    // The sender may also wait for a member that has given up.
    const Status found = now >= end
                             ? lane_->MessageTimeout(awaited_, tag_, is_short ? timeout : limit_)
                             : lane_->LookForMessage(awaited_, tag_, now - begin, next_warning);
    if (!found.ok()) lane_->posts().Cancel(ticket_, found);
    lock.lock();
    if (!found.ok()) cv_.wait(lock, is_over);
  }
  if (exception_ != nullptr) std::rethrow_exception(exception_);
  return true;
}

}  // namespace mydist
