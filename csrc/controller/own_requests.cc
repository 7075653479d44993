#include "controller/own_requests.h"

#include <algorithm>
#include <utility>

namespace mydist {
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
