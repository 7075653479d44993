#include "transport/local/local_control_plane.h"

#include <string>
#include <utility>

#include "base/thread.h"
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

size_t RingWriter::Room() const {
  const uint64_t used = put_ - theirs_->consumed.load(std::memory_order_acquire);
  return used > ring_.size() ? 0 : ring_.size() - used;
}

size_t RingWriter::Put(std::span<const uint8_t> bytes) {
  const size_t count = std::min(bytes.size(), Room());
  const size_t begin = put_ % ring_.size();
  const size_t first = std::min(count, ring_.size() - begin);
  std::copy_n(bytes.begin(), first, ring_.begin() + static_cast<ptrdiff_t>(begin));
  std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(first), count - first, ring_.begin());
  put_ += count;
  return count;
}

// The fence orders this before the next look at the room; Release has its counterpart.
void RingWriter::WantRoom(bool wants) {
  own_->wants_room.store(wants ? 1 : 0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

Result<size_t> RingReader::Available() const {
  const uint64_t available = theirs_->produced.load(std::memory_order_acquire) - taken_;
  if (available <= ring_.size()) return static_cast<size_t>(available);
  return Status::Internal("wrote " + std::to_string(available) +
                          " bytes to a ring of shared memory, expected at most " +
                          std::to_string(ring_.size()));
}

void RingReader::Take(std::span<uint8_t> into) {
  const size_t begin = taken_ % ring_.size();
  const size_t first = std::min(into.size(), ring_.size() - begin);
  std::copy_n(ring_.begin() + static_cast<ptrdiff_t>(begin), first, into.begin());
  std::copy_n(ring_.begin(), into.size() - first, into.begin() + static_cast<ptrdiff_t>(first));
  taken_ += into.size();
}

bool RingReader::Release() {
  own_->consumed.store(taken_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return theirs_->wants_room.load(std::memory_order_relaxed) != 0;
}

Outbox::Outbox(const ControlMemory& memory, int self, std::function<void()> on_empty)
    : memory_(memory), self_(self), on_empty_(std::move(on_empty)) {
  for (int peer = 0; peer < memory.ranks(); ++peer) {
    lanes_.push_back({.ring = RingWriter(memory, self, peer), .parcels = {}});
  }
}

Outbox::~Outbox() {
  stopping_.store(true);
  shm::RingBell(memory_.room_bell(self_));
  if (courier_.joinable()) courier_.join();
}

Status Outbox::Send(int peer, Bytes payload) {
  const MessageHeader header{kMessageMagic, static_cast<uint32_t>(payload.size())};
  Parcel parcel{.header = {}, .payload = std::move(payload)};
  std::memcpy(parcel.header.data(), &header, sizeof header);
  MutexLock lock(mutex_);
  Lane& lane = lanes_[static_cast<size_t>(peer)];
  // Its sender did not know yet; Receive will say so.
  if (lane.is_abandoned) return Status::Ok();
  if (lane.parcels.empty() && Push(peer, parcel)) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(StartCourier());
  lane.parcels.push_back(std::move(parcel));
  ++kept_count_;
  // The courier may sleep without any interest in this peer.
  lane.ring.WantRoom(true);
  shm::RingBell(memory_.room_bell(self_));
  return Status::Ok();
}

bool Outbox::Push(int peer, Parcel& parcel) {
  RingWriter& ring = lanes_[static_cast<size_t>(peer)].ring;
  const size_t header_bytes = parcel.header.size();
  const size_t before = parcel.sent;
  if (parcel.sent < header_bytes) {
    parcel.sent += ring.Put(std::span(parcel.header).subspan(parcel.sent));
  }
  if (parcel.sent >= header_bytes) {
    parcel.sent += ring.Put(std::span(parcel.payload).subspan(parcel.sent - header_bytes));
  }
  if (parcel.sent > before) {
    ring.Publish();
    RingFor(peer);
  }
  return parcel.sent == header_bytes + parcel.payload.size();
}

// The fence orders the bytes before the check for waiters; Await orders the other way round, so one
// of the two sides sees the other.
void Outbox::RingFor(int peer) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (memory_.line(peer).waiting.load(std::memory_order_relaxed) == kSleeps) {
    shm::RingBell(memory_.news_bell(peer));
  }
}

void Outbox::Abandon(int peer) {
  bool was_last = false;
  {
    MutexLock lock(mutex_);
    Lane& lane = lanes_[static_cast<size_t>(peer)];
    lane.is_abandoned = true;
    was_last = kept_count_ > 0;
    Drop(lane);
    was_last = was_last && kept_count_ == 0;
  }
  if (was_last) on_empty_();
}

void Outbox::Drop(Lane& lane) {
  kept_count_ -= static_cast<int>(lane.parcels.size());
  lane.parcels.clear();
}

bool Outbox::IsEmpty() {
  MutexLock lock(mutex_);
  return kept_count_ == 0;
}

Status Outbox::StartCourier() {
  if (courier_.joinable()) return Status::Ok();
  MYDIST_ASSIGN_OR_RETURN(courier_, StartThread("mydist-courier", "for a long control message",
                                                [this] { RunCourier(); }));
  return Status::Ok();
}

void Outbox::RunCourier() {
  shm::Bell& bell = memory_.room_bell(self_);
  while (!stopping_.load()) {
    const uint32_t rings = bell.rings.load();
    if (Deliver()) on_empty_();
    if (!CanDeliver() && !stopping_.load()) shm::SleepOnBell(bell, rings, kUnlimited);
  }
}

bool Outbox::Deliver() {
  MutexLock lock(mutex_);
  if (kept_count_ == 0) return false;
  for (int peer = 0; peer < memory_.ranks(); ++peer) {
    Lane& lane = lanes_[static_cast<size_t>(peer)];
    if (lane.parcels.empty()) continue;
    while (!lane.parcels.empty() && Push(peer, lane.parcels.front())) {
      lane.parcels.pop_front();
      --kept_count_;
    }
    // One that has left takes nothing any more.
    if (memory_.line(peer).state.load() != PlaneState::kOpen) Drop(lane);
    lane.ring.WantRoom(!lane.parcels.empty());
  }
  return kept_count_ == 0;
}

// After WantRoom, so that room made in between is not missed.
bool Outbox::CanDeliver() {
  MutexLock lock(mutex_);
  for (const Lane& lane : lanes_) {
    if (!lane.parcels.empty() && lane.ring.Room() > 0) return true;
  }
  return false;
}

Result<std::optional<Bytes>> IncomingStream::Next() {
  if (header_have_ < header_.size()) {
    MYDIST_ASSIGN_OR_RETURN(const bool is_complete, Fill(header_, header_have_));
    if (!is_complete) return std::optional<Bytes>();
    MYDIST_RETURN_IF_ERROR(BeginPayload());
  }
  MYDIST_ASSIGN_OR_RETURN(const bool is_complete, Fill(payload_, payload_have_));
  if (!is_complete) return std::optional<Bytes>();
  header_have_ = 0;
  payload_have_ = 0;
  return std::optional(std::exchange(payload_, {}));
}

Result<bool> IncomingStream::Fill(std::span<uint8_t> whole, size_t& have) {
  if (have == whole.size()) return true;
  MYDIST_ASSIGN_OR_RETURN(const size_t available, ring_.Available());
  if (available == 0) return false;
  const size_t count = std::min(available, whole.size() - have);
  ring_.Take(whole.subspan(have, count));
  wants_ring_ = ring_.Release() || wants_ring_;
  have += count;
  return have == whole.size();
}

Status IncomingStream::BeginPayload() {
  MessageHeader header{};
  std::memcpy(&header, header_.data(), sizeof header);
  if (header.magic != kMessageMagic) {
    header_have_ = 0;
    return Status::Internal("sent data through shared memory that is not a control message");
  }
  if (int64_t{header.payload_bytes} > kMaxControlMessageBytes) {
    header_have_ = 0;
    return Status::Internal("announced a control message of " +
                            std::to_string(header.payload_bytes) + " bytes, expected at most " +
                            std::to_string(kMaxControlMessageBytes));
  }
  payload_.resize(header.payload_bytes);
  return Status::Ok();
}

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
  MYDIST_RETURN_IF_ERROR(CheckControlMessage(payload));
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
  const bool is_broken = memory_.line(index).state.load() == PlaneState::kBroken;
  return Status::PeerLost(Name(index) +
                          (is_broken ? " closed its connection without a goodbye" : " has died") +
                          "; see its output")
      .About({.finding = is_broken ? "" : kDeadFinding})
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
