#include "transport/local/outbox.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/signal_block.h"
#include "memory/shm/waiter.h"

namespace mydist::local {

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
  const SignalBlock block;
  try {
    courier_ = std::thread([this] { RunCourier(); });
  } catch (const std::system_error& error) {
    return Status::Internal(std::string("cannot start a thread for a long control message: ") +
                            error.what() + ". Check the limit on processes (ulimit -u).");
  }
  pthread_setname_np(courier_.native_handle(), "mydist-courier");
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

}  // namespace mydist::local
