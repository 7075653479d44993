// RequestProperty: the properties ranks have to agree on, one by one, so that a mismatch can be
// found and explained with the same code. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "controller/messages/request.h"

namespace mydist {

enum class RequestProperty {
  kOp,
  kDtype,
  kShape,
  kReduceOp,
  kScale,
  kRoot,
  kProcessSet,
  kDevice,
  kGroup,
  kRanks,
};
inline constexpr int kRequestPropertyCount = 10;

// Whether the two requests agree on it. A property without a meaning for their op is never
// different; of the device only CPU or GPU counts; the first dimension where it may differ is
// not compared.
bool SameProperty(RequestProperty property, const Request& a, const Request& b);

std::vector<RequestProperty> DifferingProperties(const Request& a, const Request& b);

std::string_view RequestPropertyName(RequestProperty property);  // "reduce op"
// The value as a user would write it, e.g. "[2, 3]", "[*, 3]" where the first dimension is free.
std::string RequestPropertyText(RequestProperty property, const Request& request);

// The request as the root may send it to every rank: what differs from rank to rank is replaced
// (first dimension by 0 where it may differ, GPU index by 0).
Request RankIndependent(Request request);

}  // namespace mydist
