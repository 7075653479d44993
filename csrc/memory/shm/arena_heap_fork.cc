// How a forked child gets its own copy of a heap.

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "memory/shm/arena_heap.h"
#include "memory/shm/arena_heap_fork.h"
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
