// Request: what one rank says about one tensor it has enqueued. Pure data.
// Ranks agree on a tensor when their requests match in everything but what the op lets differ.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/export.h"
#include "world/collective_op.h"
#include "world/process_set.h"

namespace mydist {

inline constexpr int32_t kCpuDevice = -1;

// What MYDIST_CHECK_FINITE has found in the input of a rank; or this rank has refused the call, and
// tells those that wait for it. All but kAccepted fail the tensor on every rank.
enum class InputValues : uint8_t { kAccepted, kNan, kInfinite, kRefused };
inline constexpr int kInputValuesCount = 4;

struct MYDIST_EXPORT Request {
  std::string name;  // Unique among the tensors in flight of its process set.
  OpKind op = OpKind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  Shape shape;
  ReduceOp reduce_op = ReduceOp::kSum;  // Of what Reduces(op).
  int32_t root_rank = -1;               // Of what HasRoot(op); a global rank.
  double prescale = 1.0;                // Factors applied before and after the reduction.
  double postscale = 1.0;
  ProcessSetId process_set = kGlobalProcessSet;
  int32_t device = kCpuDevice;  // kCpuDevice, or the GPU's index.
  // Members of a group become ready, execute and fail together. Empty: no group.
  std::string group;
  int32_t group_size = 0;
  // Global ranks. kSendReceive: the sender, then the receiver; no other rank takes part.
  // kAddProcessSet: of the new set, ascending. Else empty.
  std::vector<int32_t> ranks;
  InputValues values = InputValues::kAccepted;

  bool operator==(const Request&) const = default;
};

// Whether this rank of the request's process set has to be ready for it.
bool TakesPart(const Request& request, int32_t rank);

// Whether an agreement on it gets a cache slot. Not what happens once under its name.
bool IsCacheable(OpKind op);

// Whether the first dimension may differ from rank to rank.
bool FirstDimMayDiffer(OpKind op);  // allgather, alltoall, gather, scatter

// What travels for each element.
MYDIST_EXPORT Carrier CarrierOf(const Request& request);

// Whether two ranks' requests for the same name agree.
bool Agree(const Request& a, const Request& b);

// RequestProperty: the properties ranks have to agree on, one by one, so that a mismatch can be
// found and explained with the same code. Pure.

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
  kValues,
};
inline constexpr int kRequestPropertyCount = 11;

// Whether the two requests agree on it. A property without a meaning for their op is never
// different; of the device only CPU or GPU counts; the first dimension where it may differ is
// not compared.
bool SameProperty(RequestProperty property, const Request& a, const Request& b);

std::string_view RequestPropertyName(RequestProperty property);  // "reduce op"
// The value as a user would write it, e.g. "[2, 3]", "[*, 3]" where the first dimension is free.
std::string RequestPropertyText(RequestProperty property, const Request& request);

// "allreduce 'x'".
std::string CallText(const Request& request);

// The request as the root may send it to every rank: what differs from rank to rank is replaced
// (first dimension by 0 where it may differ, GPU index by 0).
Request RankIndependent(Request request);

}  // namespace mydist
