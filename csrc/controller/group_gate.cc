#include "controller/group_gate.h"

#include <algorithm>
#include <utility>

namespace mydist {
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
