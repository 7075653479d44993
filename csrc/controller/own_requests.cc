#include "controller/own_requests.h"

#include <algorithm>
#include <utility>

namespace mydist {

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
  return Remove([&error](const Request& request) { return Ends(error, request); });
}

template <typename Predicate>
std::vector<std::string> OwnRequests::Remove(const Predicate& ends) {
  std::vector<std::pair<uint64_t, std::string>> ended;
  for (const auto& [name, entry] : requests_) {
    if (ends(entry.request)) ended.emplace_back(entry.number, name);
  }
  std::sort(ended.begin(), ended.end());
  std::vector<std::string> names;
  for (auto& [number, name] : ended) {
    requests_.erase(name);
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<Request> OwnRequests::TakeLost() {
  std::vector<Request> requests;
  for (const std::string& name : std::exchange(lost_, {})) {
    const auto it = requests_.find(name);
    if (it != requests_.end() && !it->second.slot) requests.push_back(it->second.request);
  }
  return requests;
}

std::vector<std::string> OwnRequests::Clear() {
  lost_.clear();
  return Remove([](const Request&) { return true; });
}

}  // namespace mydist
