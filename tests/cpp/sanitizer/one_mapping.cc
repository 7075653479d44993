// Linked into the tests under ThreadSanitizer, in the place of mmap and munmap: ranks that are
// threads of one process see a shared file at one address. Each maps it for itself, and two
// addresses are two pieces of memory for the sanitizer: it would see no race between two ranks.
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace {

// A part of a file; what is mapped more than once is unmapped as often.
struct Mapping {
  dev_t device;
  ino_t file;
  off_t offset;
  size_t bytes;
  void* memory;
  int count;
};

std::mutex g_mutex;

std::vector<Mapping>& Mappings() {
  static auto* const kMappings = new std::vector<Mapping>;
  return *kMappings;
}

}  // namespace

extern "C" {

void* __real_mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset);
int __real_munmap(void* address, size_t bytes);

void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  struct stat info {};
  if (address != nullptr || (flags & MAP_SHARED) == 0 || file < 0 || fstat(file, &info) != 0) {
    return __real_mmap(address, bytes, protection, flags, file, offset);
  }
  const std::lock_guard lock(g_mutex);
  for (Mapping& known : Mappings()) {
    if (known.device == info.st_dev && known.file == info.st_ino && known.offset == offset &&
        known.bytes == bytes) {
      ++known.count;
      return known.memory;
    }
  }
  void* memory = __real_mmap(address, bytes, protection, flags, file, offset);
  if (memory != MAP_FAILED) {
    Mappings().push_back({info.st_dev, info.st_ino, offset, bytes, memory, 1});
  }
  return memory;
}

int __wrap_munmap(void* address, size_t bytes) {
  const std::lock_guard lock(g_mutex);
  const auto known = std::find_if(Mappings().begin(), Mappings().end(), [&](const Mapping& one) {
    return one.memory == address && one.bytes == bytes;
  });
  if (known != Mappings().end()) {
    if (--known->count > 0) return 0;
    Mappings().erase(known);
  }
  return __real_munmap(address, bytes);
}

}  // extern "C"
