// How much a Hierarchical works on at a time. Equal on all ranks; results do not depend on it.
#pragma once

#include <cstdint>

namespace mydist {

struct HierarchicalLimits {
  // Up to this much, one rank of each host speaks for its host: fewer messages.
  int64_t one_slice_bytes = int64_t{32} << 10;
  // Worked on at a time, of a tensor or of all contributions together.
  int64_t chunk_bytes = int64_t{8} << 20;
};

}  // namespace mydist
