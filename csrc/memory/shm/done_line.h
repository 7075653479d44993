// What a rank has completed last, as the other ranks of its host see it, also after its death.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/export.h"
#include "memory/shm/arena_layout.h"

namespace mydist::shm {

struct LastDone {
  uint8_t op = 0;       // An OpKind.
  uint64_t number = 0;  // Which one of its process set, from 1; 0: it has none.
  std::string name;     // Of the tensor; its beginning, where it is long.

  bool operator==(const LastDone&) const = default;
};

// By the rank itself, on one thread. Does not allocate.
MYDIST_EXPORT void WriteDone(DoneLine& line, uint8_t op, uint64_t number, std::string_view name);
// By any rank, at any time. Nothing where it is being written, as by a rank that died meanwhile;
// number, op and name are 0 and empty where it has completed none.
MYDIST_EXPORT std::optional<LastDone> ReadDone(const DoneLine& line);

}  // namespace mydist::shm
