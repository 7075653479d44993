#include "controller/messages/request.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>

namespace mydist {

Carrier CarrierOf(const Request& request) {
  if (!IsIntegerAverage(request.op, request.reduce_op, request.dtype)) return {request.dtype, 1};
  return {DataType::kInt64, request.dtype == DataType::kInt64 ? 2 : 1};
}

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

namespace {

// Bitwise, so that NaN agrees with itself and the comparison is an equivalence.
bool SameDouble(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool SameShape(const Request& a, const Request& b) {
  if (a.op != b.op || !HasData(a.op)) return true;
  return FirstDimMayDiffer(a.op) ? a.shape.SameRowAs(b.shape) : a.shape == b.shape;
}

bool SameScale(const Request& a, const Request& b) {
  if (!Reduces(a.op) || !Reduces(b.op)) return true;
  return SameDouble(a.prescale, b.prescale) && SameDouble(a.postscale, b.postscale);
}

std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

std::string ShapeText(const Request& request) {
  std::string text = request.shape.ToString();
  if (!FirstDimMayDiffer(request.op) || request.shape.rank() == 0) return text;
  const size_t end = text.find_first_of(",]");
  return "[*" + text.substr(end);
}

std::string RanksText(const Request& request) {
  if (request.op == OpKind::kSendReceive && request.ranks.size() == 2) {
    return "from rank " + std::to_string(request.ranks[0]) + " to rank " +
           std::to_string(request.ranks[1]);
  }
  return RankListText(request.ranks);
}

}  // namespace

bool SameProperty(RequestProperty property, const Request& a, const Request& b) {
  switch (property) {
    case RequestProperty::kOp:
      return a.op == b.op;
    case RequestProperty::kDtype:
      return a.dtype == b.dtype || (!HasData(a.op) && !HasData(b.op));
    case RequestProperty::kShape:
      return SameShape(a, b);
    case RequestProperty::kReduceOp:
      return a.reduce_op == b.reduce_op || !Reduces(a.op) || !Reduces(b.op);
    case RequestProperty::kScale:
      return SameScale(a, b);
    case RequestProperty::kRoot:
      return a.root_rank == b.root_rank || !HasRoot(a.op) || b.op != a.op;
    case RequestProperty::kProcessSet:
      return a.process_set == b.process_set;
    case RequestProperty::kDevice:
      return (a.device == kCpuDevice) == (b.device == kCpuDevice);
    case RequestProperty::kGroup:
      return a.group == b.group && a.group_size == b.group_size;
    case RequestProperty::kRanks:
      return a.ranks == b.ranks || a.op != b.op;
    case RequestProperty::kValues:
      return a.values == b.values;
  }
  return true;
}

std::string_view RequestPropertyName(RequestProperty property) {
  constexpr std::array<std::string_view, kRequestPropertyCount> kNames = {
      "op",          "dtype",  "shape", "reduce op", "scale factors", "root rank",
      "process set", "device", "group", "ranks",     "values"};
  return kNames[static_cast<size_t>(property)];
}

std::string RequestPropertyText(RequestProperty property, const Request& request) {
  switch (property) {
    case RequestProperty::kOp:
      return std::string(OpKindName(request.op));
    case RequestProperty::kDtype:
      return std::string(DataTypeName(request.dtype));
    case RequestProperty::kShape:
      return ShapeText(request);
    case RequestProperty::kReduceOp:
      return std::string(ReduceOpName(request.reduce_op));
    case RequestProperty::kScale:
      return "prescale " + NumberText(request.prescale) + ", postscale " +
             NumberText(request.postscale);
    case RequestProperty::kRoot:
      return "root " + std::to_string(request.root_rank);
    case RequestProperty::kProcessSet:
      return "process set " + std::to_string(request.process_set);
    case RequestProperty::kDevice:
      return request.device == kCpuDevice ? "CPU" : "GPU";
    case RequestProperty::kGroup:
      if (request.group.empty()) return "no group";
      return "group '" + request.group + "' of " + std::to_string(request.group_size);
    case RequestProperty::kRanks:
      return RanksText(request);
    case RequestProperty::kValues:
      if (request.values == InputValues::kAccepted) return "finite";
      if (request.values == InputValues::kRefused) return "refused";
      return request.values == InputValues::kNan ? "NaN" : "infinite";
  }
  return "?";
}

std::string CallText(const Request& request) {
  return std::string(OpKindName(request.op)) + " '" + request.name + "'";
}

Request RankIndependent(Request request) {
  if (FirstDimMayDiffer(request.op) && request.shape.rank() > 0) {
    request.shape = request.shape.WithFirstDim(0);
  }
  if (request.device != kCpuDevice) request.device = 0;
  return request;
}

}  // namespace mydist
