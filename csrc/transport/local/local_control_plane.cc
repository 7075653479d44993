#include "transport/local/local_control_plane.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"
#include "memory/shm/waiter.h"
#include "world/departure.h"

namespace mydist::local {
namespace {

std::chrono::nanoseconds Until(TimePoint deadline) {
  if (deadline == kNever) return kUnlimited;
  return std::clamp<std::chrono::nanoseconds>(deadline - Now(), std::chrono::nanoseconds(0),
                                              kUnlimited);
}

}  // namespace

Result<std::unique_ptr<LocalControlPlane>> LocalControlPlane::Open(
    std::shared_ptr<shm::ShmPort> port) {
  std::unique_ptr<LocalControlPlane> plane(new LocalControlPlane(std::move(port)));
  MYDIST_ASSIGN_OR_RETURN(
      plane->watcher_, PeerWatcher::Start(&plane->port_->arena(),
                                          [raw = plane.get()](int peer) { raw->HandleEnd(peer); }));
  return plane;
}

LocalControlPlane::LocalControlPlane(std::shared_ptr<shm::ShmPort> port)
    : port_(std::move(port)),
      memory_(port_->arena().control_memory(), port_->arena().size()),
      index_(port_->index()),
      outbox_(memory_, index_, [this] { Wake(); }) {
  for (int index = 0; index < memory_.ranks(); ++index) {
    peers_.push_back(index == index_ ? nullptr : std::make_unique<Peer>(memory_, index_, index));
  }
}

LocalControlPlane::~LocalControlPlane() {
  if (!is_closed_) Leave(PlaneState::kBroken);
}

bool LocalControlPlane::Reaches(int rank) const { return port_->arena().IndexOf(rank).has_value(); }

Status LocalControlPlane::CheckPeer(int peer) {
  MYDIST_CHECK(Reaches(peer));
  const int index = *port_->arena().IndexOf(peer);
  MYDIST_CHECK(index != index_);
  if (IsLost(index)) return Lost(index);
  if (memory_.line(index).state.load() == PlaneState::kOpen) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(FindCause());
  return PeerHasLeft(port_->arena().ranks()[static_cast<size_t>(index)], Name(index),
                     port_->arena().WhyLeft(index));
}

Status LocalControlPlane::Send(int peer, Bytes payload) {
  if (static_cast<int64_t>(payload.size()) > kMaxControlMessageBytes) {
    return Status::Internal("a control message of " + std::to_string(payload.size()) +
                            " bytes is longer than the limit of " +
                            std::to_string(kMaxControlMessageBytes) +
                            "; submit fewer tensors at once");
  }
  MYDIST_RETURN_IF_ERROR(CheckPeer(peer));
  return outbox_.Send(*port_->arena().IndexOf(peer), std::move(payload));
}

Result<std::optional<IncomingMessage>> LocalControlPlane::Receive() {
  const int ranks = memory_.ranks();
  for (int step = 0; step < ranks; ++step) {
    const int index = (next_ + step) % ranks;
    if (index == index_) continue;
    MYDIST_ASSIGN_OR_RETURN(std::optional<Bytes> payload, ReceiveFrom(index));
    if (!payload) continue;
    next_ = (index + 1) % ranks;
    return std::optional(
        IncomingMessage{port_->arena().ranks()[static_cast<size_t>(index)], *std::move(payload)});
  }
  return std::optional<IncomingMessage>();
}

Result<std::optional<Bytes>> LocalControlPlane::ReceiveFrom(int index) {
  Peer& peer = *peers_[static_cast<size_t>(index)];
  if (peer.is_over.load(std::memory_order_relaxed)) return std::optional<Bytes>();
  const bool is_lost = IsLost(index);  // Before the look at what it has sent.
  Result<std::optional<Bytes>> payload = peer.stream.Next();
  if (peer.stream.TakeWantsRing()) shm::RingBell(memory_.room_bell(index));
  if (!payload.ok()) {
    peer.is_over.store(true);
    return Status::Internal(Name(index) + " " + payload.status().message() +
                            ". Its memory is damaged, or another program wrote to it.");
  }
  if (!payload->has_value() && is_lost) {
    peer.is_over.store(true);
    if (loss_.ok()) loss_ = Lost(index);
    return Lost(index);
  }
  return payload;
}

bool LocalControlPlane::IsLost(int index) const {
  const bool has_ended = peers_[static_cast<size_t>(index)]->has_ended.load();
  const PlaneState state = memory_.line(index).state.load();
  return state == PlaneState::kBroken || (has_ended && state == PlaneState::kOpen);
}

bool LocalControlPlane::HasNews() const {
  for (int index = 0; index < memory_.ranks(); ++index) {
    if (index == index_) continue;
    const Peer& peer = *peers_[static_cast<size_t>(index)];
    if (peer.is_over.load(std::memory_order_relaxed)) continue;
    if (peer.stream.HasBytes() || IsLost(index)) return true;
  }
  return false;
}

// A peer with news for this rank changes memory, then reads `waiting`; here it is the other way
// round, with a fence in both.
void LocalControlPlane::Await(TimePoint deadline) {
  std::atomic<uint32_t>& waiting = memory_.line(index_).waiting;
  shm::Bell& bell = memory_.news_bell(index_);
  for (bool is_over = false; !is_over;) {
    const uint32_t rings = bell.rings.load();
    const bool is_attended = (waiting.fetch_or(kSleeps) & kAttended) != 0;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const bool has_news = HasNews() || rings != seen_rings_;
    is_over = is_woken_.exchange(false) || (!is_attended && has_news) || Now() >= deadline;
    if (!is_over) shm::SleepOnBell(bell, rings, Until(deadline));
    waiting.fetch_and(~kSleeps);
    if (is_over) seen_rings_ = rings;
  }
}

void LocalControlPlane::Wake() {
  is_woken_.store(true);
  RingOwn(memory_.line(index_).waiting.load());
}

void LocalControlPlane::Attend(bool attended) {
  std::atomic<uint32_t>& waiting = memory_.line(index_).waiting;
  if (attended) {
    waiting.fetch_or(kAttended);
    return;
  }
  const uint32_t before = waiting.fetch_and(~kAttended);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (HasNews()) RingOwn(before);
}

// Counts before it checks for sleepers. Await does so the other way round: either it sees the
// count, as the futex does, or this rank sees it sleep.
void LocalControlPlane::Nudge(int peer) {
  const int index = *port_->arena().IndexOf(peer);
  const std::atomic<uint32_t>& waiting = memory_.line(index).waiting;
  shm::Bell& bell = memory_.news_bell(index);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if ((waiting.load() & kAttended) != 0) return;
  bell.rings.fetch_add(1);
  if ((waiting.load() & kSleeps) != 0) shm::WakeSleepers(bell);
}

void LocalControlPlane::RingOwn(uint32_t waiting) {
  if ((waiting & kSleeps) != 0) shm::RingBell(memory_.news_bell(index_));
}

void LocalControlPlane::HandleEnd(int index) {
  // In this order: once the loss has been reported, nothing tells Close that there is less to send.
  outbox_.Abandon(index);
  peers_[static_cast<size_t>(index)]->has_ended.store(true);
  if (IsLost(index)) RingOwn(memory_.line(index_).waiting.load());
}

Status LocalControlPlane::Lost(int index) {
  return Status::PeerLost(Name(index) +
                          (memory_.line(index).state.load() == PlaneState::kBroken
                               ? " closed its connection without a goodbye"
                               : " has died") +
                          "; see its output")
      .About(port_->arena().FailureOf(index));
}

Status LocalControlPlane::FindCause() {
  for (int index = 0; index < memory_.ranks(); ++index) {
    if (index == index_ || memory_.line(index).state.load() == PlaneState::kClosed) continue;
    if (IsLost(index) || port_->arena().HasEnded(index)) return Lost(index);
  }
  return Status::Ok();
}

Status LocalControlPlane::Close(TimePoint deadline) {
  while (!outbox_.IsEmpty() && Now() < deadline) {
    Discard();
    Await(deadline);
  }
  const bool is_flushed = outbox_.IsEmpty();
  Leave(PlaneState::kClosed);
  is_closed_ = true;
  MYDIST_RETURN_IF_ERROR(loss_);
  if (is_flushed) return Status::Ok();
  return Status::Timeout(
      "a rank of this host did not read all control messages in time; it may be busy or stopped. "
      "See the output of the ranks.");
}

void LocalControlPlane::Discard() {
  for (int index = 0; index < memory_.ranks(); ++index) {
    if (index == index_) continue;
    for (bool has_more = true; has_more;) {
      const Result<std::optional<Bytes>> dropped = ReceiveFrom(index);
      has_more = dropped.ok() && dropped->has_value();
    }
  }
}

void LocalControlPlane::Leave(PlaneState state) {
  memory_.line(index_).state.store(state);
  for (int index = 0; index < memory_.ranks(); ++index) {
    if (index == index_) continue;
    // A goodbye is no news.
    if (state == PlaneState::kBroken) shm::RingBell(memory_.news_bell(index));
    shm::RingBell(memory_.room_bell(index));
  }
}

std::string LocalControlPlane::Name(int index) const { return port_->arena().Name(index); }

}  // namespace mydist::local
