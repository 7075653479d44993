#include "memory/shm/peer_memory.h"

#include <cerrno>
#include <system_error>

#include "base/clock.h"
#include "kernels/element.h"
#include "memory/shm/cross_memory.h"

namespace mydist::shm {

Place PeerMemory::PlaceOf(const void* memory, int64_t bytes, Attach attach) const {
  if (bytes == 0) return {PlaceKind::kHeap, 0};
  if (HasHeap()) {
    if (const auto offset = arena_->heap()->OffsetOf(memory, bytes)) {
      return {PlaceKind::kHeap, *offset};
    }
  }
  if (!CanAttach(attach)) return {};
  return {PlaceKind::kPrivate, static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory))};
}

Result<uint8_t*> PeerMemory::View(int peer, const Place& place, int64_t bytes) const {
  uint8_t* view = nullptr;
  if (HasHeap() && place.kind == PlaceKind::kHeap) {
    view = arena_->heap()->At(peer, place.position, bytes);
  }
  if (view != nullptr) return view;
  return Status::Internal(arena_->Name(peer) + " says that " + std::to_string(bytes) +
                          " bytes of its tensor are at " + std::to_string(place.position) +
                          ", which is not in its part of the shared memory; check that all ranks "
                          "run the same build");
}

Status PeerMemory::Read(int peer, const Place& place, void* memory, int64_t bytes) const {
  if (bytes == 0) return Status::Ok();
  if (place.kind != PlaceKind::kPrivate) {
    MYDIST_ASSIGN_OR_RETURN(const uint8_t* view, View(peer, place, bytes));
    CopyBytes(memory, view, bytes);
    return Status::Ok();
  }
  return Outcome(peer, {place, memory, bytes},
                 cross_memory::Read(static_cast<pid_t>(arena_->rank_line(peer).pid.load()),
                                    static_cast<uint64_t>(place.position), memory, bytes));
}

Status PeerMemory::Write(int peer, const Place& place, const void* memory, int64_t bytes) const {
  if (bytes == 0) return Status::Ok();
  if (place.kind != PlaceKind::kPrivate) {
    MYDIST_ASSIGN_OR_RETURN(uint8_t * view, View(peer, place, bytes));
    CopyBytes(view, memory, bytes);
    return Status::Ok();
  }
  return Outcome(peer, {place, memory, bytes},
                 cross_memory::Write(static_cast<pid_t>(arena_->rank_line(peer).pid.load()),
                                     static_cast<uint64_t>(place.position), memory, bytes));
}

// Memory that a dying process has lost already, or that of another one with its pid, looks like a
// wrong place. Its lock goes last.
Status PeerMemory::Outcome(int peer, const Transfer& transfer, int error) const {
  if (error == 0) return Status::Ok();
  const std::string bytes = std::to_string(transfer.bytes);
  if (error == EFAULT && !cross_memory::IsMapped(transfer.memory, transfer.bytes)) {
    return Status::Internal("this rank's own tensor is not where it was (" + bytes +
                            " bytes): " + std::generic_category().message(error) +
                            ". Was it freed or resized during the collective?");
  }
  const bool is_gone = error == ESRCH;
  const TimePoint end = Now() + (is_gone ? kLockGrace : kDeathGrace);
  if (is_gone || !arena_->IsThisProcess(peer)) {
    MYDIST_RETURN_IF_ERROR(waiter_->Await({{&peer, 1}, {&peer, 1}}, [&] { return Now() >= end; }));
  }
  return Status::Internal("the memory of " + arena_->Name(peer) + " cannot be reached (" + bytes +
                          " bytes at " + std::to_string(transfer.place.position) +
                          "): " + std::generic_category().message(error) +
                          ". Was its tensor freed or resized during the collective? "
                          "MYDIST_CROSS_MEMORY_ATTACH=off does without");
}

}  // namespace mydist::shm
