// PendingRequests: for each tensor that is not cached, which lanes of this vertex are ready for it
// and with what. Pure. Owned by the Negotiator of one vertex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "controller/messages/request.h"
#include "controller/messages/stream.h"
#include "controller/readiness.h"
#include "controller/tree.h"

namespace mydist {

class PendingRequests {
 public:
  // Both must outlive this object.
  PendingRequests(const Vertex& vertex, const Participation& participation)
      : vertex_(vertex), participation_(participation) {}

  struct Entry {
    std::map<size_t, Readiness> by_lane;
    uint64_t wait = 0;  // At the stall inspector; 0: none.
  };

  // A lane is ready; false when it already was. The caller takes the entry once IsComplete.
  bool Add(size_t lane, Readiness readiness);
  // Begins waiting though no lane is ready, when nothing waits yet.
  Entry& Open(const std::string& name) { return entries_[name]; }
  // Whether some lane is ready and no further one is waited for.
  bool IsComplete(const std::string& name) const;
  std::vector<std::string> CompleteNames() const;
  // Removes a complete tensor and returns the readiness of the whole subtree.
  Readiness TakeComplete(const std::string& name);

  Entry* Find(const std::string& name);
  const Entry* Find(const std::string& name) const;
  // Forgets what the error ends; returns the waits to stop.
  std::vector<uint64_t> Drop(const StreamItem& error);
  void Clear() { entries_.clear(); }
  size_t size() const { return entries_.size(); }

 private:
  bool IsComplete(const Entry& entry) const;

  const Vertex& vertex_;
  const Participation& participation_;
  std::map<std::string, Entry> entries_;
};

// OwnRequests: what this rank has announced and the stream has not answered yet. Pure.
// Owned by the Negotiator. Knows how each was announced (as a cached slot or in full), so that a
// slot lost to eviction or invalidation makes its tensor be announced again, in full.

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
