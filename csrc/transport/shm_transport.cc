#include "transport/shm_transport.h"

#include <algorithm>

#include "kernels/element.h"
#include "memory/shm/stream_copy.h"

namespace mydist::shm {

ShmTransport::ShmTransport(Arena* arena, Waiter* waiter)
    : arena_(arena), waiter_(waiter), index_(arena->index()) {}

Status ShmTransport::Exchange(std::span<const SendTransfer> sends,
                              std::span<const ReceiveTransfer> receives) {
  Post(sends, receives);
  while (!sends_.empty() || !receives_.empty()) {
    const bool has_moved = MoveAll();
    if (wrong_peer_) return WrongCounters();
    if (has_moved) continue;
    MYDIST_RETURN_IF_ERROR(AwaitMove());
  }
  return Status::Ok();
}

void ShmTransport::Post(std::span<const SendTransfer> sends,
                        std::span<const ReceiveTransfer> receives) {
  sends_.clear();
  receives_.clear();
  for (const SendTransfer& send : sends) {
    // Only read; one kind of open transfer serves both ways.
    auto* memory = const_cast<uint8_t*>(AsBytes(send.data));
    if (send.bytes > 0) sends_.push_back({send.peer, memory, send.bytes});
  }
  for (const ReceiveTransfer& receive : receives) {
    if (receive.bytes > 0) {
      receives_.push_back({receive.peer, AsBytes(receive.data), receive.bytes});
    }
  }
  // Now, so that a call which first finds many peers late allocates nothing.
  needed_.reserve(sends_.size() + receives_.size());
  FindPartners();
}

void ShmTransport::FindPartners() {
  partners_.clear();
  for (const std::vector<Open>* open : {&sends_, &receives_}) {
    for (const Open& transfer : *open) partners_.push_back(transfer.peer);
  }
  std::sort(partners_.begin(), partners_.end());
  partners_.erase(std::unique(partners_.begin(), partners_.end()), partners_.end());
}

bool ShmTransport::MoveAll() {
  const bool has_sent = Move(sends_, [this](const Open& send) { return Push(send); });
  const bool has_received = Move(receives_, [this](const Open& receive) { return Pull(receive); });
  if (!has_sent && !has_received) return false;
  waiter_->Ring(partners_);
  return true;
}

template <typename MovePiece>
bool ShmTransport::Move(std::vector<Open>& open, MovePiece move) {
  is_taken_.assign(static_cast<size_t>(size()), false);
  bool has_moved = false;
  for (Open& transfer : open) {
    if (is_taken_[static_cast<size_t>(transfer.peer)]) continue;
    const int64_t bytes = move(transfer);
    transfer.memory += bytes;
    transfer.bytes -= bytes;
    has_moved = has_moved || bytes > 0;
    is_taken_[static_cast<size_t>(transfer.peer)] = transfer.bytes > 0;
  }
  if (has_moved) std::erase_if(open, [](const Open& transfer) { return transfer.bytes == 0; });
  return has_moved;
}

// What the peer says of a ring is checked before it is used: more than the ring holds would lead
// out of it.
int64_t ShmTransport::BytesInRing(int peer, uint64_t produced, uint64_t consumed) {
  const uint64_t bytes = produced - consumed;
  if (bytes <= static_cast<uint64_t>(arena_->layout().ring_bytes())) {
    return static_cast<int64_t>(bytes);
  }
  wrong_peer_ = peer;
  return -1;
}

int64_t ShmTransport::RoomFor(int peer) {
  const uint64_t produced = arena_->pair(index_, peer).produced.load(std::memory_order_relaxed);
  const uint64_t consumed = arena_->pair(peer, index_).consumed.load(std::memory_order_acquire);
  const int64_t bytes = BytesInRing(peer, produced, consumed);
  return bytes < 0 ? 0 : arena_->layout().ring_bytes() - bytes;
}

int64_t ShmTransport::WaitingFrom(int peer) {
  const uint64_t consumed = arena_->pair(index_, peer).consumed.load(std::memory_order_relaxed);
  const uint64_t produced = arena_->pair(peer, index_).produced.load(std::memory_order_acquire);
  return std::max<int64_t>(BytesInRing(peer, produced, consumed), 0);
}

Status ShmTransport::WrongCounters() const {
  return Status::Internal(arena_->Name(*wrong_peer_) +
                          " reports more bytes in its ring of shared memory than fit into it (" +
                          std::to_string(arena_->layout().ring_bytes()) +
                          "); check that all ranks run the same build");
}

// A piece ends where the ring does, and after a quarter of it, so that the peer can begin.
int64_t ShmTransport::Push(const Open& send) {
  std::atomic<uint64_t>& produced = arena_->pair(index_, send.peer).produced;
  const uint64_t begin = produced.load(std::memory_order_relaxed);
  const int64_t ring_bytes = arena_->layout().ring_bytes();
  const auto offset = static_cast<int64_t>(begin % static_cast<uint64_t>(ring_bytes));
  const int64_t bytes =
      std::min({send.bytes, RoomFor(send.peer), ring_bytes - offset, ring_bytes / 4});
  StreamCopy(arena_->ring(index_, send.peer) + offset, send.memory, bytes);
  produced.store(begin + static_cast<uint64_t>(bytes), std::memory_order_release);
  return bytes;
}

int64_t ShmTransport::Pull(const Open& receive) {
  std::atomic<uint64_t>& consumed = arena_->pair(index_, receive.peer).consumed;
  const uint64_t begin = consumed.load(std::memory_order_relaxed);
  const int64_t ring_bytes = arena_->layout().ring_bytes();
  const auto offset = static_cast<int64_t>(begin % static_cast<uint64_t>(ring_bytes));
  const int64_t bytes = std::min({receive.bytes, WaitingFrom(receive.peer), ring_bytes - offset});
  CopyBytes(receive.memory, arena_->ring(receive.peer, index_) + offset, bytes);
  consumed.store(begin + static_cast<uint64_t>(bytes), std::memory_order_release);
  return bytes;
}

bool ShmTransport::CanMove() {
  return std::any_of(sends_.begin(), sends_.end(),
                     [&](const Open& send) { return RoomFor(send.peer) > 0; }) ||
         std::any_of(receives_.begin(), receives_.end(),
                     [&](const Open& receive) { return WaitingFrom(receive.peer) > 0; }) ||
         wrong_peer_.has_value();
}

Status ShmTransport::AwaitMove() {
  needed_.clear();
  for (const Open& send : sends_) needed_.push_back(send.peer);
  for (const Open& receive : receives_) needed_.push_back(receive.peer);
  return waiter_->Await({needed_, needed_}, [&] { return CanMove(); });
}

ShmPort::ShmPort(std::unique_ptr<Arena> arena)
    : arena_(std::move(arena)),
      waiter_(arena_.get()),
      transport_(arena_.get(), &waiter_),
      steps_(arena_.get(), &waiter_),
      peer_memory_(arena_.get(), &waiter_) {}

ShmPort::~ShmPort() = default;

std::optional<std::vector<int>> ShmPort::IndicesOf(const std::vector<int>& ranks) const {
  std::vector<int> indices;
  for (const int rank : ranks) {
    const std::optional<int> index = arena_->IndexOf(rank);
    if (!index) return std::nullopt;
    indices.push_back(*index);
  }
  return indices;
}

std::string ShmPort::Description() const {
  const std::string& no_heap = arena_->heap_refusal();
  const std::string& no_attach = arena_->attach_refusal();
  return "fusion buffers " +
         (no_heap.empty() ? "and gradients are in it, up to " +
                                std::to_string(heap()->zone_bytes()) + " bytes of each rank"
                          : "are private (" + no_heap + ")") +
         ", private tensors " +
         (no_attach.empty() ? "are read directly (process_vm_readv)"
                            : "are copied through it (" + no_attach + ")");
}

}  // namespace mydist::shm
