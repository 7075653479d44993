#include "controller/messages/mismatch_text.h"

#include "controller/messages/request_property.h"
#include "world/rank_list.h"

namespace mydist {
namespace {

std::vector<RequestProperty> Differing(const Readiness& readiness) {
  std::vector<RequestProperty> differing;
  for (int i = 0; i < kRequestPropertyCount; ++i) {
    const auto property = static_cast<RequestProperty>(i);
    for (const Variant& variant : readiness.variants) {
      if (SameProperty(property, readiness.request(), variant.request)) continue;
      differing.push_back(property);
      break;
    }
  }
  return differing;
}

// "a", "a and b", "a, b and c".
std::string Enumerate(const std::vector<RequestProperty>& properties) {
  std::string text;
  for (size_t i = 0; i < properties.size(); ++i) {
    if (i > 0) text += i + 1 == properties.size() ? " and " : ", ";
    text += RequestPropertyName(properties[i]);
  }
  return text;
}

std::string Row(const Variant& variant, const std::vector<RequestProperty>& differing,
                const std::vector<std::string>& hosts) {
  std::string row =
      "\n  " + RankListText(variant.ranks) + HostListText(variant.ranks, hosts) + ": ";
  for (size_t i = 0; i < differing.size(); ++i) {
    if (i > 0) row += ", ";
    row += RequestPropertyText(differing[i], variant.request);
  }
  return row;
}

}  // namespace

std::string MismatchText(const Readiness& readiness, const std::vector<std::string>& hosts) {
  const std::vector<RequestProperty> differing = Differing(readiness);
  const std::string properties = Enumerate(differing);
  const bool same_op = differing.front() != RequestProperty::kOp;
  std::string text = "tensor '" + readiness.name() + "': ranks disagree on the " + properties;
  if (same_op) text += " of this " + std::string(OpKindName(readiness.request().op));
  text += ":";
  for (const Variant& variant : readiness.variants) text += Row(variant, differing, hosts);
  if (readiness.unlisted_rank_count > 0) {
    text += "\n  " + std::to_string(readiness.unlisted_rank_count) +
            " more ranks: further differing values";
  }
  if (ChangesProcessSets(readiness.request().op)) {
    return text + "\nLet every rank add and remove the same process sets in the same order.";
  }
  return text + "\nSubmit it with the same " + properties +
         " on every rank, or give different tensors different names.";
}

std::string GroupFailureText(const std::string& name, const std::string& group,
                             const std::string& cause) {
  return "tensor '" + name + "' fails with its group '" + group +
         "', whose members complete together or not at all: " + cause;
}

}  // namespace mydist
