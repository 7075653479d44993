#include "memory/shm/peer_memory.h"

#include <sys/mman.h>
#include <sys/uio.h>

#include <cerrno>
#include <system_error>

#include "base/clock.h"
#include "kernels/element.h"

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
  return Status::Internal(arena_->Name(peer) +
                          " sent a tensor address outside its shared memory (" +
                          std::to_string(bytes) + " bytes at " + std::to_string(place.position) +
                          "); check that all ranks run the same build");
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
    return Status::Internal("the memory of this rank's tensor (" + bytes +
                            " bytes) is gone: " + std::generic_category().message(error) +
                            ". Was the tensor freed or resized during the collective?");
  }
  const bool is_gone = error == ESRCH;
  const TimePoint end = Now() + (is_gone ? kLockGrace : kDeathGrace);
  if (is_gone || !arena_->IsThisProcess(peer)) {
    MYDIST_RETURN_IF_ERROR(waiter_->Await({{&peer, 1}, {&peer, 1}}, [&] { return Now() >= end; }));
    // On a busy machine the time may be over before the wait has looked at the peer.
    MYDIST_RETURN_IF_ERROR(arena_->CheckPeers({&peer, 1}, {&peer, 1}));
  }
  return Status::Internal("cannot access the memory of " + arena_->Name(peer) + " (" + bytes +
                          " bytes at " + std::to_string(transfer.place.position) +
                          "): " + std::generic_category().message(error) +
                          ". Was its tensor freed or resized during the collective? "
                          "MYDIST_CROSS_MEMORY_ATTACH=off avoids such access");
}

}  // namespace mydist::shm

namespace mydist::shm::cross_memory {
namespace {

constexpr uint64_t kMark = 0x6d61726b;

// Peers read and write this when they probe. They all write the same value.
struct Target {
  Nonce nonce;
  uint64_t mark;
};

using Call = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                         unsigned long);

int Copy(Call call, pid_t pid, uint64_t address, void* memory, int64_t bytes) {
  auto* local = static_cast<uint8_t*>(memory);
  while (bytes > 0) {
    const iovec here{local, static_cast<size_t>(bytes)};
    const iovec there{reinterpret_cast<void*>(address), static_cast<size_t>(bytes)};
    const ssize_t copied = call(pid, &here, 1, &there, 1, 0);
    if (copied <= 0) return copied == 0 ? EFAULT : errno;
    local += copied;
    address += static_cast<uint64_t>(copied);
    bytes -= copied;
  }
  return 0;
}

std::string Refusal(const char* call, int error) {
  return std::string(call) + " was refused: " + std::generic_category().message(error);
}

}  // namespace

int Read(pid_t pid, uint64_t address, void* memory, int64_t bytes) {
  return Copy(process_vm_readv, pid, address, memory, bytes);
}

int Write(pid_t pid, uint64_t address, const void* memory, int64_t bytes) {
  // Only read; one loop serves both ways.
  return Copy(process_vm_writev, pid, address, const_cast<void*>(memory), bytes);
}

bool IsMapped(const void* memory, int64_t bytes) {
  constexpr uintptr_t kPage = kPageBytes;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t end = address + static_cast<uintptr_t>(bytes);
  unsigned char is_resident = 0;  // Of no interest: the call fails where there is no memory.
  for (uintptr_t page = address / kPage * kPage; page < end; page += kPage) {
    if (mincore(reinterpret_cast<void*>(page), kPage, &is_resident) != 0) return false;
  }
  return true;
}

uint64_t ProbeAddress(const Nonce& nonce) {
  static Target target{nonce, 0};
  return reinterpret_cast<uintptr_t>(&target);
}

std::string Probe(pid_t pid, uint64_t address, const Nonce& nonce) {
  Target seen{};
  if (const int error = Read(pid, address, &seen.nonce, sizeof seen.nonce); error != 0) {
    return Refusal("process_vm_readv", error);
  }
  if (seen.nonce != nonce)
    return "its process id belongs to another process here (are the ranks in separate containers?)";
  const uint64_t mark_address = address + offsetof(Target, mark);
  if (const int error = Write(pid, mark_address, &kMark, sizeof kMark); error != 0) {
    return Refusal("process_vm_writev", error);
  }
  if (const int error = Read(pid, mark_address, &seen.mark, sizeof seen.mark); error != 0) {
    return Refusal("process_vm_readv", error);
  }
  return seen.mark == kMark ? "" : "process_vm_writev wrote data that did not arrive";
}

}  // namespace mydist::shm::cross_memory
