#include "controller/request.h"

#include "controller/request_property.h"

namespace mydist {

bool FirstDimMayDiffer(OpKind op) { return op == OpKind::kAllgather || op == OpKind::kAlltoall; }

bool Agree(const Request& a, const Request& b) {
  for (int i = 0; i < kRequestPropertyCount; ++i) {
    if (!SameProperty(static_cast<RequestProperty>(i), a, b)) return false;
  }
  return true;
}

}  // namespace mydist
