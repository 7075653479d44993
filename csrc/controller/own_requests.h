// OwnRequests: what this rank has announced and the stream has not answered yet. Pure.
// Owned by the Negotiator. Knows how each was announced (as a cached slot or in full), so that a
// slot lost to eviction or invalidation makes its tensor be announced again, in full.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "controller/messages/request.h"
#include "controller/messages/stream.h"

namespace mydist {

class OwnRequests {
 public:
  // False when the name is already there.
  bool Add(const Request& request, std::optional<uint32_t> slot);
  bool Contains(const std::string& name) const { return requests_.contains(name); }
  size_t size() const { return requests_.size(); }

  // The stream says the tensor is ready: what this rank announced; nothing when it did not.
  std::optional<Request> Answer(const std::string& name);
  // The stream took the slot away from `name`.
  void SlotLost(const std::string& name, uint32_t slot);
  // Removes what the error ends; the names, in order of announcement.
  std::vector<std::string> End(const StreamItem& error);
  // Those whose slot was lost and that are still unanswered, in the order in which they were lost.
  std::vector<Request> TakeLost();
  // Forgets all; in order of announcement.
  std::vector<Request> TakeAll();
  // Forgets all; the names, in order of announcement.
  std::vector<std::string> Clear();

 private:
  struct Entry {
    Request request;
    std::optional<uint32_t> slot;
    uint64_t number = 0;  // Order of announcement.
  };

  // In order of announcement.
  template <typename Predicate>
  std::vector<Request> Remove(const Predicate& ends);

  uint64_t announced_count_ = 0;
  std::unordered_map<std::string, Entry> requests_;
  std::vector<std::string> lost_;
};

}  // namespace mydist
