// Stream: the one sequence of decisions of the root, handled by every rank in the same order.
// Pure data. A segment is a piece of it on its way down the tree; the root ends what it decided in
// one cycle with kBoundary, and what lies between two boundaries is planned (fused) together.
// The position of a vertex is the number of items it has applied, boundaries included.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "controller/response.h"

namespace mydist {

enum class StreamKind : uint8_t {
  kBoundary = 0,
  kReadySlot = 1,       // slot
  kReadyAgreement = 2,  // agreement; everybody caches it
  kError = 3,           // name, groups, code, text
  kInvalidate = 4,      // slot
  kStall = 5,           // name, text
  kDeparted = 6,        // rank, text
  kFinished = 7,
  kTimelineStart = 8,  // flag: mark cycles
  kTimelineStop = 9,
};
inline constexpr int kStreamKindCount = 10;

struct StreamItem {
  StreamKind kind = StreamKind::kBoundary;
  uint32_t slot = 0;
  std::shared_ptr<const Agreement> agreement;
  StatusCode code = StatusCode::kOk;
  std::string name;
  std::string text;
  std::vector<std::string> groups;  // Groups whose members fail with `name`.
  int32_t rank = -1;
  bool flag = false;
};

struct StreamSegment {
  uint64_t start = 0;  // Position before the first item.
  std::vector<StreamItem> items;
};

// Whether an error item ends the negotiation of this tensor.
inline bool Ends(const StreamItem& error, const Request& request) {
  if (error.name == request.name) return true;
  return !request.group.empty() &&
         std::find(error.groups.begin(), error.groups.end(), request.group) != error.groups.end();
}

}  // namespace mydist
