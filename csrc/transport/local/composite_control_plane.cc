#include "transport/local/composite_control_plane.h"

#include <pthread.h>

#include <string>
#include <system_error>
#include <utility>

#include "base/signal_block.h"

namespace mydist::local {

Result<std::unique_ptr<ControlPlane>> CompositeControlPlane::Open(
    std::unique_ptr<ControlPlane> cross, std::shared_ptr<shm::ShmPort> port) {
  MYDIST_ASSIGN_OR_RETURN(std::unique_ptr<LocalControlPlane> local,
                          LocalControlPlane::Open(std::move(port)));
  std::unique_ptr<CompositeControlPlane> plane(
      new CompositeControlPlane(std::move(cross), std::move(local)));
  MYDIST_RETURN_IF_ERROR(plane->StartForwarder());
  return std::unique_ptr<ControlPlane>(std::move(plane));
}

CompositeControlPlane::~CompositeControlPlane() { StopForwarder(); }

Status CompositeControlPlane::StartForwarder() {
  const SignalBlock block;
  try {
    forwarder_ = std::thread([this] { Forward(); });
  } catch (const std::system_error& error) {
    return Status::Internal(std::string("cannot start a thread that waits for other hosts: ") +
                            error.what() + ". Check the limit on processes (ulimit -u).");
  }
  pthread_setname_np(forwarder_.native_handle(), "mydist-forward");
  return Status::Ok();
}

void CompositeControlPlane::StopForwarder() {
  if (!forwarder_.joinable()) return;
  is_stopping_.store(true);
  cross_->Wake();
  forwarder_.join();
}

void CompositeControlPlane::Forward() {
  for (bool goes_on = true; goes_on;) {
    cross_->Await(kNever);
    if (is_stopping_.load()) return;
    goes_on = TakeIn();
    // Or else the end of attention looks for it.
    if (has_found_.load() && !is_attended_.load()) local_->Wake();
  }
}

bool CompositeControlPlane::TakeIn() {
  MutexLock lock(mutex_);
  for (;;) {
    Result<std::optional<IncomingMessage>> got = cross_->Receive();
    if (got.ok() && !got->has_value()) return true;
    if (got.ok()) {
      found_.push_back({Status::Ok(), **std::move(got)});
    } else {
      found_.push_back({got.status()});
    }
    has_found_.store(true);
    if (!got.ok() && !got.status().is_loss()) return false;
  }
}

Result<std::optional<IncomingMessage>> CompositeControlPlane::ReceiveCross() {
  MutexLock lock(mutex_);
  if (found_.empty()) return cross_->Receive();
  Found oldest = std::move(found_.front());
  found_.pop_front();
  has_found_.store(!found_.empty());
  MYDIST_RETURN_IF_ERROR(oldest.status);
  return std::optional(std::move(oldest.message));
}

Status CompositeControlPlane::Send(int peer, Bytes payload) {
  return local_->Reaches(peer) ? local_->Send(peer, std::move(payload))
                               : cross_->Send(peer, std::move(payload));
}

Status CompositeControlPlane::CheckPeer(int peer) {
  return local_->Reaches(peer) ? local_->CheckPeer(peer) : cross_->CheckPeer(peer);
}

Result<std::optional<IncomingMessage>> CompositeControlPlane::Receive() {
  is_cross_next_ = !is_cross_next_;
  for (const bool is_cross : {is_cross_next_, !is_cross_next_}) {
    Result<std::optional<IncomingMessage>> got = is_cross ? ReceiveCross() : local_->Receive();
    if (!got.ok() || got->has_value()) return got;
  }
  return std::optional<IncomingMessage>();
}

void CompositeControlPlane::Await(TimePoint deadline) {
  const bool has_news = has_found_.load() && !is_attended_.load();
  local_->Await(has_news ? TimePoint::min() : deadline);
}

void CompositeControlPlane::Attend(bool attended) {
  is_attended_.store(attended);
  cross_->Attend(attended);
  local_->Attend(attended);
  if (!attended && has_found_.load()) local_->Wake();
}

Status CompositeControlPlane::Close(TimePoint deadline) {
  StopForwarder();
  const Status local = local_->Close(deadline);
  const Status cross = cross_->Close(deadline);
  return cross.ok() ? local : cross;
}

}  // namespace mydist::local
