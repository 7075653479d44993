// What a forked child gets of a heap.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "memory/shm/arena_heap.h"
#include "memory/shm/arena_layout.h"

namespace mydist::shm {
namespace {

constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Of a child that would otherwise share memory. Other threads may have held any lock at the fork.
[[noreturn]] void EndChild() {
  constexpr std::string_view kText =
      "mydist: a forked child got no memory of its own in place of what its parent shares with "
      "other ranks, expected a mapping at the same address; it ends here, lest it write into their "
      "gradients. Raise vm.max_map_count or the limit on address space (ulimit -v), or fork before "
      "init().\n";
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

// The addresses stay taken, so that the destructor unmaps nobody else's memory.
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
