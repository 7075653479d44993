#include "allocation/allocation_count.h"

#include <cstdlib>
#include <new>

namespace {

thread_local int64_t allocation_count = 0;

void* Count(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  ++allocation_count;
  return memory;
}

}  // namespace

namespace mydist {

int64_t AllocationCount() { return allocation_count; }

}  // namespace mydist

// The forms for arrays end up in these.
void* operator new(std::size_t bytes) { return Count(std::malloc(bytes == 0 ? 1 : bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return Count(std::aligned_alloc(unit, (bytes + unit) / unit * unit));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocation_count;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
