#include "controller/messages/stall_text.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/call_name.h"
#include "controller/messages/request.h"
#include "world/process_set.h"

namespace mydist {

namespace {

// Names beyond this are compared by their beginnings: the cost grows with the square.
constexpr size_t kMaxComparedBytes = 256;
// Of the tensors that wait for the same ranks.
constexpr size_t kMostNamed = 4;

std::string ShortSecondsText(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g s", ToSeconds(duration));
  return text;
}

bool ReadyOnNoneOf(const WaitingTensor& tensor, const WaitingTensor& other) {
  return std::none_of(other.ready.begin(), other.ready.end(), [&](int32_t rank) {
    return std::binary_search(tensor.ready.begin(), tensor.ready.end(), rank);
  });
}

bool SomeMissingIsReadyIn(const WaitingTensor& tensor, const WaitingTensor& other) {
  return std::any_of(tensor.missing.begin(), tensor.missing.end(), [&](int32_t rank) {
    return std::binary_search(other.ready.begin(), other.ready.end(), rank);
  });
}

// Whether `other` may be what the missing ranks have submitted instead.
bool MayBeMeant(const WaitingTensor& tensor, const WaitingTensor& other) {
  const bool same_set = tensor.request.process_set == other.request.process_set;
  if (same_set && other.request.name == tensor.request.name) return false;
  // In sets without common ranks like names are nothing unusual.
  return ReadyOnNoneOf(tensor, other) && (same_set || SomeMissingIsReadyIn(tensor, other));
}

// Lower is more alike; nothing when unlike.
std::optional<size_t> Distance(const Request& a, const Request& b) {
  const auto compared = [](const std::string& name) {
    return std::string_view(name).substr(0, kMaxComparedBytes);
  };
  const size_t distance = EditDistance(compared(a.name), compared(b.name));
  const size_t longer = std::min(kMaxComparedBytes, std::max(a.name.size(), b.name.size()));
  const bool similar_name = distance <= std::max<size_t>(1, longer / 4);
  const bool same_tensor = SameProperty(RequestProperty::kOp, a, b) &&
                           SameProperty(RequestProperty::kDtype, a, b) &&
                           SameProperty(RequestProperty::kShape, a, b);
  if (similar_name) return distance;
  if (same_tensor && a.process_set == b.process_set) return kMaxComparedBytes + distance;
  return std::nullopt;
}

std::string ReadyText(const WaitingTensor& tensor, bool names_set) {
  const std::string set =
      names_set ? " in process set " + std::to_string(tensor.request.process_set) : "";
  return "'" + tensor.request.name + "'" + set + " is ready on " + RankListText(tensor.ready);
}

struct NearMiss {
  std::string first;
  std::string second;
  const char* advice;
};

NearMiss Explain(const WaitingTensor& tensor, const WaitingTensor& other) {
  const bool sets_differ = other.request.process_set != tensor.request.process_set;
  return {ReadyText(tensor, sets_differ), ReadyText(other, sets_differ),
          sets_differ
              ? "If this is one tensor, pass the same process_set on every rank. If these are two "
                "tensors, the ranks wait for each other: call shared collectives in the same order "
                "on every rank."
              : "This is one tensor under two names, or some ranks skip a call: use the same name "
                "on every rank, and look for a branch that only some ranks take."};
}

// " waits", or " and 3 more tensors ('b', 'c', …) wait".
std::string MoreText(std::span<const std::string> more) {
  if (more.empty()) return " waits";
  std::string names;
  for (const std::string& name : more.first(std::min(more.size(), kMostNamed))) {
    names += (names.empty() ? "'" : ", '") + name + "'";
  }
  if (more.size() > kMostNamed) names += ", …";
  return " and " + std::to_string(more.size()) +
         (more.size() == 1 ? " more tensor" : " more tensors") + " (" + names + ") wait";
}

}  // namespace

const WaitingTensor* FindNearMiss(const WaitingTensor& tensor,
                                  const std::vector<WaitingTensor>& others) {
  const WaitingTensor* best = nullptr;
  size_t best_distance = 0;
  for (const WaitingTensor& other : others) {
    if (!MayBeMeant(tensor, other)) continue;
    const auto distance = Distance(tensor.request, other.request);
    if (!distance || (best != nullptr && *distance >= best_distance)) continue;
    best = &other;
    best_distance = *distance;
  }
  return best;
}

std::string StallText(const WaitingTensor& tensor, Duration waited, const StallContext& context) {
  std::string text = CallText(tensor.request) + MoreText(context.more) + " for " +
                     RankListText(tensor.missing) +
                     HostListText(tensor.missing, *context.hosts, context.pids) + " for " +
                     ShortSecondsText(waited);
  if (!tensor.ready.empty()) text += "; ready on " + RankListText(tensor.ready);
  text += ".";
  if (const WaitingTensor* other = FindNearMiss(tensor, *context.others)) {
    const auto [first, second, advice] = Explain(tensor, *other);
    return text + "\n  " + first + "\n  " + second + "\n" + advice;
  }
  return text +
         " Every rank has to submit the same tensors: look for a branch that only some ranks take,"
         " or a rank that is slow, stopped or already done.";
}

std::string NearMissHint(const WaitingTensor& tensor, const WaitingTensor& near_miss) {
  const auto [first, second, advice] = Explain(tensor, near_miss);
  return first + ", and " + second + ". " + advice;
}

void StallWarnings::Add(WaitingTensor tensor, Duration waited) {
  // Looking for one costs time, and what is not told needs none.
  const bool has_near_miss =
      waits_.size() < kMost && FindNearMiss(tensor, *context_->others) != nullptr;
  const auto is_like = [&](const Wait& wait) {
    return !has_near_miss && !wait.has_near_miss && wait.first.missing == tensor.missing &&
           wait.first.ready == tensor.ready;
  };
  const auto like = std::find_if(waits_.begin(), waits_.end(), is_like);
  if (like == waits_.end()) {
    waits_.push_back({std::move(tensor), waited, has_near_miss, {}});
  } else {
    like->more.push_back(tensor.request.name);
  }
}

std::vector<StallWarnings::Warning> StallWarnings::Take() && {
  std::vector<Warning> warnings;
  size_t untold = 0;
  for (const Wait& wait : waits_) {
    if (warnings.size() == kMost) {
      untold += 1 + wait.more.size();
      continue;
    }
    StallContext context = *context_;
    context.more = wait.more;
    warnings.push_back(
        {wait.first.request.name, StallText(wait.first, wait.waited, context), wait.first.missing});
  }
  if (untold > 0) {
    warnings.push_back(
        {"", std::to_string(untold) + " more tensors wait for ranks that are not ready.", {}});
  }
  return warnings;
}

std::string GroupStallText(const Request& member, size_t ready_count, Duration waited) {
  return "group '" + member.group + "' has waited for " + ShortSecondsText(waited) + ": " +
         std::to_string(ready_count) + " of its " + std::to_string(member.group_size) +
         " tensors are ready on all ranks, among them '" + member.name +
         "'. Submit all members of a group together, with the right group size.";
}

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

std::vector<int32_t> RanksNotAccepted(const Readiness& readiness) {
  std::vector<int32_t> ranks;
  for (const Variant& variant : readiness.variants) {
    if (variant.request.values == InputValues::kAccepted) continue;
    ranks.insert(ranks.end(), variant.ranks.begin(), variant.ranks.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

namespace {

// A rank that has refused a call knows neither its tensors nor what the others disagree on.
std::string RefusedText(const Readiness& readiness, const std::vector<std::string>& hosts) {
  std::string text = "tensor '" + readiness.name() + "': a rank has refused its call:";
  for (const Variant& variant : readiness.variants) {
    if (variant.request.values != InputValues::kRefused) continue;
    text += Row(variant, {RequestProperty::kValues}, hosts);
  }
  return text + "\nThe exception there says why. Make the same calls in one order on every rank.";
}

bool IsRefused(const Readiness& readiness) {
  const auto is_refused = [](const Variant& variant) {
    return variant.request.values == InputValues::kRefused;
  };
  return std::any_of(readiness.variants.begin(), readiness.variants.end(), is_refused);
}

// The other ranks, and what else they disagree on, would hide where the number comes from.
std::string NotFiniteText(const Readiness& readiness, const std::vector<std::string>& hosts) {
  std::string text = "tensor '" + readiness.name() + "': the input of this " +
                     std::string(OpKindName(readiness.request().op)) + " is not finite:";
  for (const Variant& variant : readiness.variants) {
    if (variant.request.values == InputValues::kAccepted) continue;
    text += Row(variant, {RequestProperty::kValues}, hosts);
  }
  return text +
         "\nFind out where the number comes from, or set MYDIST_CHECK_FINITE=0 to pass it on.";
}

}  // namespace

std::string MismatchText(const Readiness& readiness, const std::vector<std::string>& hosts) {
  if (IsRefused(readiness)) return RefusedText(readiness, hosts);
  if (!RanksNotAccepted(readiness).empty()) return NotFiniteText(readiness, hosts);
  const std::vector<RequestProperty> differing = Differing(readiness);
  const std::string properties = Enumerate(differing);
  const bool same_op = differing.front() != RequestProperty::kOp;
  std::string text = "tensor '" + readiness.name() + "': ranks disagree on the " + properties;
  if (same_op) text += " of this " + std::string(OpKindName(readiness.request().op));
  text += ":";
  for (const Variant& variant : readiness.variants) text += Row(variant, differing, hosts);
  if (readiness.unlisted_rank_count > 0) {
    text +=
        "\n  " + std::to_string(readiness.unlisted_rank_count) + " more ranks have other values";
  }
  if (ChangesProcessSets(readiness.request().op)) {
    return text + "\nAdd and remove the same process sets in the same order on every rank.";
  }
  return text + "\nSubmit it with the same " + properties +
         " on every rank, or give the tensors different names.";
}

std::string GroupFailureText(const std::string& name, const std::string& group,
                             const std::string& cause) {
  return "tensor '" + name + "' fails with its group '" + group +
         "', whose members complete together or not at all: " + cause;
}

}  // namespace mydist
