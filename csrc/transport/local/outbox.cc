#include "transport/local/outbox.h"

#include <pthread.h>

#include <chrono>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/signal_block.h"
#include "memory/shm/bell.h"

namespace mydist::local {
namespace {

constexpr std::chrono::hours kUnlimited{24 * 365};

}  // namespace

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

// The fence orders the bytes before the look at who waits; Await orders the other way round, so one
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
    return Status::Internal(std::string("no thread for a long control message: ") + error.what() +
                            ". Check the limit on processes (ulimit -u).");
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

}  // namespace mydist::local
