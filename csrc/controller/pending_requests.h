// PendingRequests: for each tensor that is not cached, which lanes of this vertex are ready for it
// and with what. Pure. Owned by the Negotiator of one vertex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/messages/stream.h"
#include "controller/participation.h"
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

}  // namespace mydist
