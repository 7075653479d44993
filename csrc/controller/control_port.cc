#include "controller/control_port.h"

#include <algorithm>
#include <iterator>

#include "controller/messages/wire.h"

namespace mydist {
namespace {

// How long a job in which ranks are leaving may stay unfinished after a connection broke.
constexpr Duration kLossGrace = std::chrono::seconds(5);

}  // namespace

Status ControlPort::Exchange(TimePoint now) {
  if (plane_ == nullptr) return Status::Ok();
  bool more = true;
  while (more) {
    MYDIST_ASSIGN_OR_RETURN(more, ReceiveOne());
  }
  return CheckGrace(now);
}

std::vector<IncomingMessage> ControlPort::TakeInquiries() {
  const auto first =
      std::stable_partition(inbox_.begin(), inbox_.end(), [](const IncomingMessage& message) {
        const auto kind = PeekKind(message.payload);
        return !kind.ok() || (*kind != MessageKind::kQuestion && *kind != MessageKind::kAnswer);
      });
  std::vector<IncomingMessage> inquiries(std::make_move_iterator(first),
                                         std::make_move_iterator(inbox_.end()));
  inbox_.erase(first, inbox_.end());
  return inquiries;
}

void ControlPort::Await(TimePoint deadline) {
  if (plane_ != nullptr) return plane_->Await(deadline);
  Sleep(deadline);
}

void ControlPort::Attend(bool attended) {
  if (plane_ != nullptr) plane_->Attend(attended);
}

Status ControlPort::Post(int peer, Bytes payload) {
  ++stats_.control_messages_sent;
  stats_.control_bytes_sent += std::ssize(payload);
  return plane_->Send(peer, std::move(payload));
}

Status ControlPort::SendIfThere(int peer, Bytes payload) {
  Status sent = Post(peer, std::move(payload));
  return sent.is_loss() ? Status::Ok() : sent;
}

void ControlPort::Wake() {
  if (plane_ != nullptr) return plane_->Wake();
  MutexLock lock(mutex_);
  woken_ = true;
  woken_condition_.NotifyOne();
}

Status ControlPort::Judge(Status status) {
  if (!status.is_loss()) return status;
  if (finished_) return Status::Ok();
  if (!expects_losses_) return status;
  if (loss_.ok()) loss_ = std::move(status);
  return Status::Ok();
}

Status ControlPort::CheckGrace(TimePoint now) {
  if (finished_ || loss_.ok()) return Status::Ok();
  if (!grace_end_) grace_end_ = now + kLossGrace;
  if (!HasMessages()) {
    unread_end_.reset();
    return now < *grace_end_ ? Status::Ok() : loss_;
  }
  // What has just come may say that all have left, also where this process was paused for long. But
  // a collective that waits for the lost rank takes no message in.
  if (!unread_end_) unread_end_ = std::max(now, *grace_end_) + kLossGrace;
  return now < *unread_end_ ? Status::Ok() : loss_;
}

TimePoint ControlPort::NextDeadline() const {
  if (finished_ || loss_.ok()) return kNever;
  return grace_end_.value_or(kPast);
}

void ControlPort::Sleep(TimePoint deadline) {
  MutexLock lock(mutex_);
  while (!woken_ && woken_condition_.WaitUntil(mutex_, deadline)) {
  }
  woken_ = false;
}

// Whether to look again: there was a message, or a loss that is not to be reported now.
Result<bool> ControlPort::ReceiveOne() {
  auto received = plane_->Receive();
  if (!received.ok()) {
    MYDIST_RETURN_IF_ERROR(Judge(received.status()));
    return true;
  }
  if (!received->has_value()) return false;
  ++stats_.control_messages_received;
  inbox_.push_back(**std::move(received));
  return true;
}

}  // namespace mydist
