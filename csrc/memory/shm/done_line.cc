#include "memory/shm/done_line.h"

#include <algorithm>
#include <cstring>

namespace mydist::shm {
namespace {

constexpr size_t kWordBytes = sizeof(uint64_t);
constexpr size_t kMaxName = DoneLine::kNameWords * kWordBytes;

}  // namespace

// A word that is read acquires the odd version before it, so a reader that got a new word between
// two old ones finds another version at the end.
void WriteDone(DoneLine& line, uint8_t op, uint64_t number, std::string_view name) {
  const uint64_t version = line.version.load(std::memory_order_relaxed);
  name = name.substr(0, kMaxName);
  line.version.store(version + 1, std::memory_order_relaxed);
  line.number.store(number, std::memory_order_release);
  line.op_and_length.store(op | uint64_t{name.size()} << 8, std::memory_order_release);
  for (size_t at = 0; at < name.size(); at += kWordBytes) {
    uint64_t word = 0;
    std::memcpy(&word, name.data() + at, std::min(kWordBytes, name.size() - at));
    line.name[at / kWordBytes].store(word, std::memory_order_release);
  }
  line.version.store(version + 2, std::memory_order_release);
}

std::optional<LastDone> ReadDone(const DoneLine& line) {
  const uint64_t version = line.version.load(std::memory_order_acquire);
  if (version == 0) return LastDone();
  const uint64_t op_and_length = line.op_and_length.load(std::memory_order_acquire);
  LastDone done{.op = static_cast<uint8_t>(op_and_length),
                .number = line.number.load(std::memory_order_acquire),
                .name = {}};
  // No more than there is, whatever a peer has written.
  done.name.resize(std::min<size_t>(op_and_length >> 8, kMaxName));
  for (size_t at = 0; at < done.name.size(); at += kWordBytes) {
    const uint64_t word = line.name[at / kWordBytes].load(std::memory_order_acquire);
    std::memcpy(done.name.data() + at, &word, std::min(kWordBytes, done.name.size() - at));
  }
  const bool is_whole = version % 2 == 0 && line.version.load(std::memory_order_relaxed) == version;
  return is_whole ? std::optional(std::move(done)) : std::nullopt;
}

}  // namespace mydist::shm
