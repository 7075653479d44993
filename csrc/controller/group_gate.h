// GroupGate: holds members of a group at the root until all of them are ready on all ranks. Pure.
// Owned by the root's Negotiator. Tensors without a group pass at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "controller/messages/response.h"
#include "controller/messages/stream.h"
#include "controller/readiness.h"

namespace mydist {

// A tensor all ranks are ready for, whether or not they agree on it.
struct ReadyTensor {
  std::shared_ptr<const Agreement> agreement;  // Null when they disagree.
  Readiness disagreement;                      // Else without variants.

  const Request& request() const {
    return agreement != nullptr ? agreement->request : disagreement.request();
  }
};

class GroupGate {
 public:
  struct Held {
    std::vector<ReadyTensor> members;
    uint64_t wait = 0;  // At the stall inspector; 0: none.
  };

  // Takes a tensor in; returns what leaves together, in order of arrival: nothing while the group
  // is incomplete.
  Held Pass(ReadyTensor tensor);
  // The group held under this name, if any.
  Held* Find(const std::string& group);
  // Forgets the member that rests on a cached agreement its ranks will request anew.
  void DropMember(const Agreement& agreement);
  // Forgets what the error ends; returns the waits to stop.
  std::vector<uint64_t> Drop(const StreamItem& error);
  void Clear() { groups_.clear(); }

 private:
  std::map<std::string, Held> groups_;
};

}  // namespace mydist
