// How a forked child gets its own copy of a heap.
#include "memory/shm/arena_heap.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "memory/shm/arena_layout.h"

namespace mydist::shm {
namespace {

constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Ends a child that would otherwise share memory. Other threads may have held any lock at the fork.
[[noreturn]] void EndChild() {
  constexpr std::string_view kText =
      "mydist: a forked child cannot map its own copy of the memory that its parent shares with "
      "other ranks. It exits, because it would write into their gradients. Raise vm.max_map_count "
      "or the limit on address space (ulimit -v), or fork before init().\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText.data(), kText.size());
  _exit(1);
}

}  // namespace

std::vector<Extent> ArenaHeap::CopiedPages() const {
  std::vector<Extent> pages;
  for (const auto& [begin, end] : copied_) {
    const Extent whole{RoundDown(begin, kPageBytes), RoundUp(end, kPageBytes)};
    if (!pages.empty() && whole.begin <= pages.back().end) {
      pages.back().end = std::max(pages.back().end, whole.end);
    } else {
      pages.push_back(whole);
    }
  }
  return pages;
}

void ArenaHeap::BeforeFork() {
  mutex_.Lock();
  const std::vector<Extent> pages = CopiedPages();
  copy_bytes_ = 0;
  for (const Extent& extent : pages) copy_bytes_ += extent.end - extent.begin;
  if (copy_bytes_ == 0) return;
  void* const copy =
      mmap(nullptr, static_cast<size_t>(copy_bytes_), PROT_READ | PROT_WRITE, kPrivate, -1, 0);
  copy_ = copy == MAP_FAILED ? nullptr : static_cast<uint8_t*>(copy);
  if (copy_ == nullptr) return;
  uint8_t* next = copy_;
  for (const Extent& extent : pages) {
    const int64_t bytes = extent.end - extent.begin;
    std::memcpy(next, own_zone() + extent.begin, static_cast<size_t>(bytes));
    next += bytes;
  }
}

void ArenaHeap::AfterForkInParent() {
  if (copy_ != nullptr) munmap(copy_, static_cast<size_t>(copy_bytes_));
  copy_ = nullptr;
  mutex_.Unlock();
}

// The addresses stay taken, so that the destructor unmaps no other memory.
void ArenaHeap::AfterForkInChild() {
  const auto all_bytes = static_cast<size_t>(zones_.zone_bytes * zones_.count);
  if (mmap(memory_, all_bytes, PROT_NONE, kPrivate | MAP_FIXED, -1, 0) == MAP_FAILED) EndChild();
  const uint8_t* next = copy_;
  for (const Extent& extent : CopiedPages()) {
    const auto bytes = static_cast<size_t>(extent.end - extent.begin);
    uint8_t* const place = own_zone() + extent.begin;
    if (copy_ == nullptr) {
      // There was no memory. The child's writes are its own; what it reads may change.
      if (!file_->MapPrivate(place, FileOffset(extent.begin), extent.end - extent.begin)) {
        EndChild();
      }
      continue;
    }
    void* const from = const_cast<uint8_t*>(next);
    if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) == MAP_FAILED) EndChild();
    next += bytes;
  }
  copy_ = nullptr;
  mutex_.Unlock();
}

Result<std::shared_ptr<ArenaHeap>> ArenaHeap::Map(std::shared_ptr<ArenaFile> file,
                                                  const Zones& zones, int index) {
  MYDIST_ASSIGN_OR_RETURN(uint8_t * memory,
                          file->MapSparse(zones.base, zones.zone_bytes * zones.count));
  // A core dump would fetch every page of every zone, as many as the file system has for each rank.
  static_cast<void>(
      madvise(memory, static_cast<size_t>(zones.zone_bytes * zones.count), MADV_DONTDUMP));
  std::shared_ptr<ArenaHeap> heap(new ArenaHeap(std::move(file), zones, index, memory));
  forked_heaps::Add(heap.get());
  return heap;
}

ArenaHeap::ArenaHeap(std::shared_ptr<ArenaFile> file, const Zones& zones, int index,
                     uint8_t* memory)
    : file_(std::move(file)),
      zones_(zones),
      index_(index),
      memory_(memory),
      owner_pid_(getpid()),
      free_(zones.zone_bytes) {}

ArenaHeap::~ArenaHeap() {
  forked_heaps::Remove(this);
  munmap(memory_, static_cast<size_t>(zones_.zone_bytes * zones_.count));
}

Result<std::shared_ptr<uint8_t>> ArenaHeap::Allocate(int64_t bytes, InForkedChild in_child) {
  MYDIST_CHECK(bytes > 0);
  const bool fits = bytes <= zones_.zone_bytes;
  const int64_t unit = bytes < kPageBytes ? kLineBytes : kPageBytes;
  const int64_t taken_bytes = fits ? RoundUp(bytes, unit) : bytes;
  MutexLock lock(mutex_);
  const std::optional<int64_t> offset = fits ? free_.Take(taken_bytes, unit) : std::nullopt;
  if (!offset && bytes > file_->RoomForTensors() / zones_.count) {
    return file_->NoRoomForTensors(bytes, zones_.count);
  }
  if (!offset) {
    return Status::Internal("shared memory is exhausted: this rank needs " + std::to_string(bytes) +
                            " contiguous bytes of its " + std::to_string(zones_.zone_bytes) +
                            ". Enlarge /dev/shm (in a container with --shm-size)");
  }
  const Extent extent{*offset, *offset + taken_bytes};
  const Status reserved = taken_bytes <= file_->RoomForTensors()
                              ? file_->Reserve(FileOffset(extent.begin), taken_bytes)
                              : file_->NoRoomForTensors(taken_bytes, zones_.count);
  if (!reserved.ok()) {
    // Some of the pages may be there already.
    Release(extent, free_.Give(extent));
    return reserved;
  }
  if (in_child == InForkedChild::kCopy) copied_[extent.begin] = extent.end;
  return std::shared_ptr<uint8_t>(own_zone() + extent.begin, [heap = shared_from_this(), extent](
                                                                 uint8_t*) { heap->Free(extent); });
}

Status ArenaHeap::CheckRoom(int64_t bytes) const {
  // The whole room, not this rank's share: others may have taken theirs.
  if (bytes <= std::min(zones_.zone_bytes, file_->RoomForTensors())) return Status::Ok();
  return file_->NoRoomForTensors(bytes, zones_.count);
}

void ArenaHeap::Free(const Extent& extent) {
  // In a forked child the memory is still the parent's, and the mutex may be locked for ever.
  if (getpid() != owner_pid_) return;
  MutexLock lock(mutex_);
  copied_.erase(extent.begin);
  Release(extent, free_.Give(extent));
}

// Only whole free pages go back.
void ArenaHeap::Release(const Extent& freed, const Extent& around) {
  const int64_t begin =
      std::max(RoundUp(around.begin, kPageBytes), RoundDown(freed.begin, kPageBytes));
  const int64_t end = std::min(RoundDown(around.end, kPageBytes), RoundUp(freed.end, kPageBytes));
  if (begin < end) file_->Release(FileOffset(begin), end - begin);
}

std::optional<int64_t> ArenaHeap::OffsetOf(const void* memory, int64_t bytes) const {
  // Compared as numbers: pointers into different memory must not be compared.
  const auto begin = reinterpret_cast<uintptr_t>(own_zone());
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (address < begin || bytes < 0) return std::nullopt;
  const uintptr_t offset = address - begin;
  const auto zone_bytes = static_cast<uintptr_t>(zones_.zone_bytes);
  if (offset > zone_bytes || static_cast<uintptr_t>(bytes) > zone_bytes - offset) {
    return std::nullopt;
  }
  return static_cast<int64_t>(offset);
}

uint8_t* ArenaHeap::At(int rank, int64_t offset, int64_t bytes) const {
  if (offset < 0 || bytes < 0 || offset > zones_.zone_bytes) return nullptr;
  if (bytes > zones_.zone_bytes - offset) return nullptr;
  return memory_ + rank * zones_.zone_bytes + offset;
}

std::optional<int64_t> FreeExtents::Take(int64_t bytes, int64_t alignment) {
  for (auto it = ends_.begin(); it != ends_.end(); ++it) {
    const auto [begin, end] = *it;
    const int64_t offset = (begin + alignment - 1) / alignment * alignment;
    if (end - offset < bytes) continue;
    ends_.erase(it);
    if (begin < offset) ends_[begin] = offset;
    if (offset + bytes < end) ends_[offset + bytes] = end;
    return offset;
  }
  return std::nullopt;
}

Extent FreeExtents::Give(const Extent& extent) {
  Extent merged = extent;
  auto next = ends_.lower_bound(extent.begin);
  if (next != ends_.end() && next->first == extent.end) {
    merged.end = next->second;
    next = ends_.erase(next);
  }
  if (next != ends_.begin() && std::prev(next)->second == extent.begin) {
    merged.begin = std::prev(next)->first;
    ends_.erase(std::prev(next));
  }
  ends_[merged.begin] = merged.end;
  return merged;
}

}  // namespace mydist::shm

namespace mydist::shm::forked_heaps {
namespace {

struct Heaps {
  Mutex mutex;  // Held while a fork is on.
  std::vector<ArenaHeap*> list MYDIST_GUARDED_BY(mutex);
};

// Never destroyed: tensors may be freed while the program exits.
Heaps& TheHeaps() {
  static Heaps* const kHeaps = new Heaps;
  return *kHeaps;
}

// The analysis follows no lock from one function to the next.
void BeforeFork() MYDIST_NO_THREAD_SAFETY_ANALYSIS {
  TheHeaps().mutex.Lock();
  for (ArenaHeap* heap : TheHeaps().list) heap->BeforeFork();
}

void AfterForkInParent() MYDIST_NO_THREAD_SAFETY_ANALYSIS {
  for (ArenaHeap* heap : TheHeaps().list) heap->AfterForkInParent();
  TheHeaps().mutex.Unlock();
}

void AfterForkInChild() MYDIST_NO_THREAD_SAFETY_ANALYSIS {
  for (ArenaHeap* heap : TheHeaps().list) heap->AfterForkInChild();
  // A child of the child gets its own memory anyway.
  TheHeaps().list.clear();
  TheHeaps().mutex.Unlock();
}

}  // namespace

void Add(ArenaHeap* heap) {
  static const bool kRegistered =
      pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild) == 0;
  if (!kRegistered)
    MYDIST_LOG(kWarning)
        << "pthread_atfork failed: forked children may overwrite this rank's gradients";
  MutexLock lock(TheHeaps().mutex);
  TheHeaps().list.push_back(heap);
}

void Remove(ArenaHeap* heap) {
  MutexLock lock(TheHeaps().mutex);
  std::erase(TheHeaps().list, heap);
}

}  // namespace mydist::shm::forked_heaps
