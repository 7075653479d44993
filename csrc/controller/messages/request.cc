#include "controller/messages/request.h"

#include <algorithm>

#include "controller/messages/request_property.h"

namespace mydist {

bool TakesPart(const Request& request, int32_t rank) {
  if (request.op != OpKind::kSendReceive) return true;
  return std::find(request.ranks.begin(), request.ranks.end(), rank) != request.ranks.end();
}

bool IsCacheable(OpKind op) { return op != OpKind::kSendReceive && !ChangesProcessSets(op); }

bool FirstDimMayDiffer(OpKind op) {
  return GathersRows(op) || op == OpKind::kAlltoall || op == OpKind::kScatter;
}

bool Agree(const Request& a, const Request& b) {
  for (int i = 0; i < kRequestPropertyCount; ++i) {
    if (!SameProperty(static_cast<RequestProperty>(i), a, b)) return false;
  }
  return true;
}

}  // namespace mydist
