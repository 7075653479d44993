#include "fakes/fake_memory.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace mydist::testing {
namespace {

constexpr int64_t kPageBytes = 4096;

std::shared_ptr<uint8_t> PoisonedPages(int64_t bytes) {
  const auto rounded = static_cast<size_t>((bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
  auto* memory = static_cast<uint8_t*>(std::aligned_alloc(kPageBytes, rounded));
  MYDIST_CHECK(memory != nullptr);
  std::memset(memory, FakeMemory::kPoison, rounded);
  return {memory, std::free};
}

std::string Describe(const void* address) {
  char text[32];
  std::snprintf(text, sizeof(text), "%p", address);
  return text;
}

}  // namespace

std::string FakeAllocation::Describe() const {
  return std::string(kind == MemoryKind::kDevice ? "device" : "pinned") + " memory " +
         std::to_string(number) + " (" + std::to_string(bytes) + " bytes)";
}

std::shared_ptr<FakeAllocation> FakeMemory::Add(MemoryKind kind, int64_t bytes, const void* owner) {
  const std::shared_ptr<FakeAllocation> allocation(new FakeAllocation{
      kind, bytes, ++made_count_, owner, PoisonedPages(bytes), AccessMap(bytes)});
  by_address_[allocation->data()] = allocation;
  return allocation;
}

void FakeMemory::Free(const std::shared_ptr<FakeAllocation>& allocation) {
  allocation->is_freed = true;
  freed_.push_back(allocation);
  freed_bytes_ += allocation->bytes;
  while (freed_bytes_ > kKeptBytes) {
    freed_bytes_ -= freed_.front()->bytes;
    by_address_.erase(freed_.front()->data());
    freed_.pop_front();
  }
}

std::shared_ptr<FakeAllocation> FakeMemory::At(const void* address) const {
  const auto* begin = static_cast<const uint8_t*>(address);
  const auto next = by_address_.upper_bound(begin);
  if (next == by_address_.begin()) return nullptr;
  const auto& found = std::prev(next)->second;
  return begin < found->data() + found->bytes ? found : nullptr;
}

Result<std::shared_ptr<FakeAllocation>> FakeMemory::Find(const MemoryRange& range) const {
  const std::shared_ptr<FakeAllocation> found = At(range.begin);
  const std::string what = std::to_string(range.bytes) + " bytes at " + Describe(range.begin);
  if (found == nullptr) {
    return Status::InvalidArgument(what + ", which is no memory of the device");
  }
  const FakeAllocation& allocation = *found;
  const int64_t offset = static_cast<const uint8_t*>(range.begin) - found->data();
  if (allocation.is_freed) {
    return Status::InvalidArgument(what + " in " + allocation.Describe() + ", which is freed");
  }
  if (range.bytes > allocation.bytes - offset) {
    return Status::InvalidArgument(what + ", beyond the end of " + allocation.Describe() +
                                   ", where it begins at byte " + std::to_string(offset));
  }
  return found;
}

std::vector<std::string> FakeMemory::LivingOf(const void* owner) const {
  std::vector<std::string> living;
  for (const auto& [address, allocation] : by_address_) {
    if (!allocation->is_freed && allocation->owner == owner)
      living.push_back(allocation->Describe());
  }
  return living;
}

}  // namespace mydist::testing
