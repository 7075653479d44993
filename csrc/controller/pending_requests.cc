#include "controller/pending_requests.h"

#include "base/check.h"

namespace mydist {
namespace {

bool EndedBy(const StreamItem& error, const std::string& name,
             const PendingRequests::Entry& entry) {
  if (error.name == name) return true;
  for (const auto& [lane, readiness] : entry.by_lane) {
    for (const Variant& variant : readiness.variants) {
      if (Ends(error, variant.request)) return true;
    }
  }
  return false;
}

}  // namespace

bool PendingRequests::Add(size_t lane, Readiness readiness) {
  Entry& entry = entries_[readiness.name()];
  return entry.by_lane.emplace(lane, std::move(readiness)).second;
}

bool PendingRequests::IsComplete(const std::string& name) const {
  const Entry* entry = Find(name);
  return entry != nullptr && entry->by_lane.size() == vertex_.lanes.size();
}

Readiness PendingRequests::TakeComplete(const std::string& name) {
  MYDIST_CHECK(IsComplete(name));
  const auto node = entries_.extract(name);
  std::vector<ReadinessPart> parts;
  for (const auto& [lane, readiness] : node.mapped().by_lane) {
    parts.push_back({&readiness, &vertex_.lanes[lane].ranks});
  }
  return MergeReadiness(parts);
}

PendingRequests::Entry* PendingRequests::Find(const std::string& name) {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

const PendingRequests::Entry* PendingRequests::Find(const std::string& name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

std::vector<uint64_t> PendingRequests::Drop(const StreamItem& error) {
  std::vector<uint64_t> waits;
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (EndedBy(error, it->first, it->second)) {
      waits.push_back(it->second.wait);
      it = entries_.erase(it);
    } else {
      ++it;
    }
  }
  return waits;
}

}  // namespace mydist
