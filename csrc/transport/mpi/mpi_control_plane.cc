#include "transport/mpi/mpi_control_plane.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "base/status.h"

namespace mydist {

MpiControlPlane::MpiControlPlane(std::shared_ptr<MpiWorld> world)
    : world_(std::move(world)), backoff_(kEager, kLongestPause) {}

MpiControlPlane::~MpiControlPlane() {
  MutexLock lock(mpi_mutex_);
  // After an end that was not orderly MPI may still read and write the memory of these, and has no
  // way to be told not to.
  if (!outgoing_.empty()) static_cast<void>(new std::list<Outgoing>(std::move(outgoing_)));
  static_cast<void>(arriving_.release());
}

Status MpiControlPlane::CheckPeer(int peer) {
  MutexLock lock(mpi_mutex_);
  return world_->HasDeparted(peer) ? world_->HasLeft(peer) : Status::Ok();
}

Status MpiControlPlane::Send(int peer, Bytes payload) {
  MYDIST_CHECK(peer >= 0 && peer < world_->size() && peer != world_->rank());
  if (static_cast<int64_t>(payload.size()) > kMaxControlMessageBytes) {
    return Status::Internal("a control message of " + std::to_string(payload.size()) +
                            " bytes is longer than the limit of " +
                            std::to_string(kMaxControlMessageBytes) +
                            "; submit fewer tensors at once");
  }
  MutexLock lock(mpi_mutex_);
  if (world_->HasDeparted(peer)) return world_->HasLeft(peer);
  return Post(peer, kMessageTag, std::move(payload));
}

Status MpiControlPlane::Post(int peer, int tag, Bytes payload) {
  MYDIST_RETURN_IF_ERROR(ReapOutgoing());
  Outgoing& outgoing = outgoing_.emplace_back();
  outgoing.payload = std::move(payload);
  return MpiStatus(MPI_Isend(outgoing.payload.data(), static_cast<int>(outgoing.payload.size()),
                             MPI_BYTE, peer, tag, world_->control(), &outgoing.request),
                   "MPI_Isend to rank " + std::to_string(peer));
}

Status MpiControlPlane::ReapOutgoing() {
  for (auto it = outgoing_.begin(); it != outgoing_.end();) {
    int done = 0;
    MYDIST_RETURN_IF_MPI_ERROR(MPI_Test(&it->request, &done, MPI_STATUS_IGNORE));
    it = done != 0 ? outgoing_.erase(it) : std::next(it);
  }
  return Status::Ok();
}

Result<std::optional<IncomingMessage>> MpiControlPlane::Receive() {
  MutexLock lock(mpi_mutex_);
  if (found_.has_value()) return std::exchange(found_, std::nullopt);
  MYDIST_RETURN_IF_ERROR(std::exchange(failure_, Status::Ok()));
  return Poll();
}

void MpiControlPlane::Await(TimePoint deadline) {
  backoff_.Reset(Now());
  while (!HasNews() && Pause(deadline)) {
  }
  MutexLock lock(mutex_);
  woken_ = false;
}

bool MpiControlPlane::IsAttended() {
  MutexLock lock(mutex_);
  return attended_;
}

bool MpiControlPlane::HasNews() {
  const bool is_attended = IsAttended();
  MutexLock lock(mpi_mutex_);
  if (is_attended) {
    // The caller may be in a collective without MPI, which a peer enters only after it has received
    // pending messages, and long messages move only during calls of MPI.
    const Status status = ReapOutgoing();
    if (!status.ok()) failure_ = status;
    return false;
  }
  if (found_.has_value() || !failure_.ok()) return true;
  Result<std::optional<IncomingMessage>> looked = Poll();
  if (looked.ok()) {
    found_ = *std::move(looked);
  } else {
    failure_ = looked.status();
  }
  return found_.has_value() || !failure_.ok();
}

Result<std::optional<IncomingMessage>> MpiControlPlane::Poll() {
  MYDIST_RETURN_IF_ERROR(ReapOutgoing());
  for (;;) {
    if (arriving_ == nullptr) MYDIST_RETURN_IF_ERROR(MatchNext());
    if (arriving_ == nullptr) return std::optional<IncomingMessage>();
    int done = 0;
    MYDIST_RETURN_IF_MPI_ERROR(MPI_Test(&arriving_->request, &done, MPI_STATUS_IGNORE));
    if (done == 0) return std::optional<IncomingMessage>();
    const std::unique_ptr<Arriving> arrived = std::move(arriving_);
    return std::optional(std::move(arrived->message));
  }
}

Status MpiControlPlane::MatchNext() {
  int found = 0;
  MPI_Message matched = MPI_MESSAGE_NULL;
  MPI_Status envelope;
  MYDIST_RETURN_IF_MPI_ERROR(
      MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, world_->control(), &found, &matched, &envelope));
  if (found == 0) return Status::Ok();
  if (envelope.MPI_TAG == MpiWorld::kGoodbyeTag) {
    MYDIST_RETURN_IF_ERROR(world_->TakeGoodbye(matched, envelope));
    return MatchNext();
  }
  int bytes = 0;
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Get_count(&envelope, MPI_BYTE, &bytes));
  if (bytes < 0 || bytes > kMaxControlMessageBytes) {
    return Status::Internal(
        "rank " + std::to_string(envelope.MPI_SOURCE) + " sent a control message of " +
        std::to_string(bytes) + " bytes, at most " + std::to_string(kMaxControlMessageBytes) +
        " are allowed. It runs another version of mydist, or its memory is damaged.");
  }
  arriving_ = std::make_unique<Arriving>();
  arriving_->message.source = envelope.MPI_SOURCE;
  arriving_->message.payload.resize(static_cast<size_t>(bytes));
  MYDIST_RETURN_IF_MPI_ERROR(MPI_Imrecv(arriving_->message.payload.data(), bytes, MPI_BYTE,
                                        &matched, &arriving_->request));
  return Status::Ok();
}

bool MpiControlPlane::Pause(TimePoint deadline) {
  const TimePoint now = Now();
  const Duration pause = backoff_.Next(now);
  MutexLock lock(mutex_);
  if (woken_ || now >= deadline) return false;
  if (attended_) {
    changed_.WaitUntil(mutex_, std::min(deadline, now + kLongestPause));
  } else if (pause == Duration::zero()) {
    sched_yield();
  } else {
    changed_.WaitUntil(mutex_, std::min(deadline, now + pause));
  }
  return true;
}

void MpiControlPlane::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyOne();
}

void MpiControlPlane::Attend(bool attended) {
  MutexLock lock(mutex_);
  attended_ = attended;
}

int MpiControlPlane::PresentPeers() const { return world_->size() - 1 - world_->departed_count(); }

Status MpiControlPlane::Close(TimePoint deadline) {
  MutexLock lock(mpi_mutex_);
  const Bytes words(farewell_.begin(), farewell_.end());
  for (int peer = 0; peer < world_->size(); ++peer) {
    if (peer != world_->rank()) MYDIST_RETURN_IF_ERROR(Post(peer, MpiWorld::kGoodbyeTag, words));
  }
  backoff_.Reset(Now());
  while (PresentPeers() > 0 || !outgoing_.empty()) {
    // Messages that come between now and a peer's goodbye have no reader any more.
    MYDIST_ASSIGN_OR_RETURN(const std::optional<IncomingMessage> unread, Poll());
    if (unread.has_value()) continue;
    const TimePoint now = Now();
    if (now >= deadline) {
      return Status::Timeout(std::to_string(PresentPeers()) +
                             " rank(s) did not close their connections in time; they may be busy "
                             "or stopped. See their output.");
    }
    std::this_thread::sleep_until(std::min(deadline, now + backoff_.Next(now)));
  }
  world_->MarkClosed();
  return Status::Ok();
}

}  // namespace mydist
