#include "controller/fusion_planner.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>
#include <utility>

namespace mydist {

namespace {

struct Candidate {
  size_t index = 0;
  int64_t bytes = 0;
};

// Whatever must be equal within one batch. Scales as bits: an exact, total order.
auto FusionKey(const Request& request) {
  const bool reduces = Reduces(request.op);
  return std::make_tuple(request.process_set, request.group, request.op, request.dtype,
                         request.device == kCpuDevice, reduces ? request.reduce_op : ReduceOp::kSum,
                         std::bit_cast<uint64_t>(reduces ? request.prescale : 1.0),
                         std::bit_cast<uint64_t>(reduces ? request.postscale : 1.0),
                         HasRoot(request.op) ? request.root_rank : -1);
}
using Key = decltype(FusionKey(Request{}));

bool Fuses(OpKind op) {
  return op == OpKind::kAllreduce || op == OpKind::kAllgather || op == OpKind::kBroadcast ||
         op == OpKind::kReducescatter;
}

void PlanGroup(const std::vector<Candidate>& members, std::vector<std::vector<size_t>>& plan) {
  std::vector<size_t>& batch = plan.emplace_back();
  for (const Candidate& member : members) batch.push_back(member.index);
}

// What does not fit begins the next batch: neighbours stay neighbours, and gradients that lie side
// by side are reduced where they lie.
void PlanByThreshold(const std::vector<Candidate>& candidates, int64_t threshold_bytes,
                     std::vector<std::vector<size_t>>& plan) {
  int64_t room_bytes = -1;
  for (const Candidate& candidate : candidates) {
    const bool fits = threshold_bytes > 0 && candidate.bytes <= room_bytes;
    if (!fits) {
      plan.emplace_back();
      room_bytes = threshold_bytes;
    }
    plan.back().push_back(candidate.index);
    room_bytes -= candidate.bytes;
  }
}

// Where the batch of a group stands: with the group's first member, so that a group of several
// dtypes stays together.
std::vector<size_t> OrderKeys(std::span<const std::shared_ptr<const Agreement>> ready) {
  std::map<std::string, size_t> first_of_group;
  std::vector<size_t> keys(ready.size());
  for (size_t i = 0; i < ready.size(); ++i) {
    const std::string& group = ready[i]->request.group;
    keys[i] = group.empty() ? i : first_of_group.emplace(group, i).first->second;
  }
  return keys;
}

}  // namespace

int64_t FusedBytes(const Agreement& agreement) {
  const Request& request = agreement.request;
  // What has no size that can be counted fits nowhere.
  constexpr int64_t kTooMuch = std::numeric_limits<int64_t>::max();
  Shape shape = request.shape;
  if (GathersRows(request.op)) {
    int64_t rows = 0;
    for (const int64_t first_dim : agreement.first_dims) {
      if (__builtin_add_overflow(rows, first_dim, &rows)) return kTooMuch;
    }
    shape = shape.WithFirstDim(rows);
  }
  int64_t bytes = 0;
  const auto element_count = shape.ElementCount();
  if (!element_count ||
      __builtin_mul_overflow(*element_count, CarrierOf(request).bytes(), &bytes)) {
    return kTooMuch;
  }
  return bytes;
}

bool HasUncountableRows(const Agreement& agreement) {
  return GathersRows(agreement.request.op) && FusedBytes(agreement) > int64_t{1} << 62;
}

std::vector<std::vector<size_t>> PlanFusion(std::span<const std::shared_ptr<const Agreement>> ready,
                                            int64_t threshold_bytes) {
  std::map<Key, std::vector<Candidate>> by_key;
  std::vector<std::vector<size_t>> plan;
  for (size_t i = 0; i < ready.size(); ++i) {
    const Request& request = ready[i]->request;
    if (Fuses(request.op)) {
      by_key[FusionKey(request)].push_back({i, FusedBytes(*ready[i])});
    } else {
      plan.push_back({i});
    }
  }
  for (auto& [key, candidates] : by_key) {
    if (ready[candidates.front().index]->request.group.empty()) {
      PlanByThreshold(candidates, threshold_bytes, plan);
    } else {
      PlanGroup(candidates, plan);
    }
  }
  const std::vector<size_t> keys = OrderKeys(ready);
  std::sort(plan.begin(), plan.end(), [&](const auto& a, const auto& b) {
    return std::make_pair(keys[a.front()], a.front()) < std::make_pair(keys[b.front()], b.front());
  });
  return plan;
}

namespace {

// When the ranks disagree on the group itself it can never be complete: it leaves at once.
bool DisagreesOnGroup(const ReadyTensor& tensor) {
  const auto& variants = tensor.disagreement.variants;
  return std::any_of(variants.begin(), variants.end(), [&](const Variant& variant) {
    return variant.request.group != tensor.request().group ||
           variant.request.group_size != tensor.request().group_size;
  });
}

}  // namespace

GroupGate::Held GroupGate::Pass(ReadyTensor tensor) {
  const std::string group = tensor.request().group;
  const auto group_size = static_cast<size_t>(std::max(tensor.request().group_size, 0));
  if (group.empty() || DisagreesOnGroup(tensor)) {
    Held alone;
    alone.members.push_back(std::move(tensor));
    return alone;
  }
  Held& held = groups_[group];
  held.members.push_back(std::move(tensor));
  if (held.members.size() < group_size) return {};
  return std::move(groups_.extract(group).mapped());
}

GroupGate::Held* GroupGate::Find(const std::string& group) {
  const auto it = groups_.find(group);
  return it == groups_.end() ? nullptr : &it->second;
}

void GroupGate::DropMember(const Agreement& agreement) {
  Held* held = Find(agreement.request.group);
  if (held == nullptr) return;
  std::erase_if(held->members,
                [&](const ReadyTensor& member) { return member.agreement.get() == &agreement; });
}

std::vector<uint64_t> GroupGate::Drop(const StreamItem& error) {
  std::vector<uint64_t> waits;
  for (auto it = groups_.begin(); it != groups_.end();) {
    auto& members = it->second.members;
    std::erase_if(members,
                  [&](const ReadyTensor& member) { return Ends(error, member.request()); });
    if (members.empty()) {
      waits.push_back(it->second.wait);
      it = groups_.erase(it);
    } else {
      ++it;
    }
  }
  return waits;
}

}  // namespace mydist
