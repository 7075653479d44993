#include "controller/pending_requests.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

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
  return entry != nullptr && IsComplete(*entry);
}

bool PendingRequests::IsComplete(const Entry& entry) const {
  if (entry.by_lane.size() == vertex_.lanes.size()) return true;
  if (entry.by_lane.empty()) return false;
  // The usual case, without a look at every lane.
  const bool all_take_part = entry.by_lane.begin()->second.request().op != OpKind::kSendReceive;
  if (all_take_part && !participation_.anybody_joined()) return false;
  for (const auto& [ready_lane, readiness] : entry.by_lane) {
    for (const Variant& variant : readiness.variants) {
      for (size_t lane = 0; lane < vertex_.lanes.size(); ++lane) {
        if (entry.by_lane.contains(lane)) continue;
        if (participation_.Awaits(lane, variant.request)) return false;
      }
    }
  }
  return true;
}

std::vector<std::string> PendingRequests::CompleteNames() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    if (IsComplete(entry)) names.push_back(name);
  }
  return names;
}

Readiness PendingRequests::TakeComplete(const std::string& name) {
  MYDIST_CHECK(IsComplete(name));
  const auto node = entries_.extract(name);
  const std::map<size_t, Readiness>& by_lane = node.mapped().by_lane;
  std::vector<ReadinessPart> parts;
  for (size_t lane = 0; lane < vertex_.lanes.size(); ++lane) {
    const auto ready = by_lane.find(lane);
    ReadinessPart& part = parts.emplace_back();
    part.ranks = &vertex_.lanes[lane].ranks;
    if (ready == by_lane.end()) continue;
    part.readiness = &ready->second;
    part.asked = participation_.Awaited(lane, part.readiness->request());
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

namespace {

std::vector<std::string> NamesOf(std::vector<Request> requests) {
  std::vector<std::string> names;
  for (Request& request : requests) names.push_back(std::move(request.name));
  return names;
}

}  // namespace

bool OwnRequests::Add(const Request& request, std::optional<uint32_t> slot) {
  return requests_.try_emplace(request.name, Entry{request, slot, announced_count_++}).second;
}

std::optional<Request> OwnRequests::Answer(const std::string& name) {
  auto node = requests_.extract(name);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped().request);
}

void OwnRequests::SlotLost(const std::string& name, uint32_t slot) {
  const auto it = requests_.find(name);
  if (it == requests_.end() || it->second.slot != slot) return;
  it->second.slot = std::nullopt;
  lost_.push_back(name);
}

std::vector<std::string> OwnRequests::End(const StreamItem& error) {
  return NamesOf(Remove([&error](const Request& request) { return Ends(error, request); }));
}

template <typename Predicate>
std::vector<Request> OwnRequests::Remove(const Predicate& ends) {
  std::vector<Entry> ended;
  for (auto it = requests_.begin(); it != requests_.end();) {
    if (ends(it->second.request)) {
      ended.push_back(std::move(it->second));
      it = requests_.erase(it);
    } else {
      ++it;
    }
  }
  std::sort(ended.begin(), ended.end(),
            [](const Entry& a, const Entry& b) { return a.number < b.number; });
  std::vector<Request> requests;
  for (Entry& entry : ended) requests.push_back(std::move(entry.request));
  return requests;
}

std::vector<Request> OwnRequests::TakeLost() {
  std::vector<Request> requests;
  for (const std::string& name : std::exchange(lost_, {})) {
    const auto it = requests_.find(name);
    if (it != requests_.end() && !it->second.slot) requests.push_back(it->second.request);
  }
  return requests;
}

std::vector<Request> OwnRequests::TakeAll() {
  lost_.clear();
  return Remove([](const Request&) { return true; });
}

std::vector<std::string> OwnRequests::Clear() { return NamesOf(TakeAll()); }

}  // namespace mydist
