// Fusion planner: which ready tensors share one buffer; the "fuse" step. Pure.
// Every rank runs it on the same responses (those of one Coordinator::Negotiate call) and gets the
// same plan. Invariant: every index appears exactly once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "controller/messages/response.h"
#include "controller/readiness.h"

namespace mydist {

// Bytes the tensor takes in a fusion buffer: for allgather those of all ranks together.
MYDIST_EXPORT int64_t FusedBytes(const Agreement& agreement);

// Whether the rows that all ranks gather are more than 64-bit sizes can count, whatever is done.
bool HasUncountableRows(const Agreement& agreement);

// The batches to execute, in order; each lists indices into `ready`, ascending. Tensors fuse when
// op, dtype, kind of device, reduce op, scales, root and process set are equal, up to
// `threshold_bytes` (0: nothing fuses); what does not fit begins the next batch, so that tensors of
// a kind that follow each other stay together. A tensor beyond the threshold, an alltoall and a
// barrier stay alone. Members of a group fuse only with each other, whatever the threshold; their
// batches (one per dtype, say) are adjacent. A batch stands where its first member stood.
MYDIST_EXPORT std::vector<std::vector<size_t>> PlanFusion(
    std::span<const std::shared_ptr<const Agreement>> ready, int64_t threshold_bytes);

// A tensor all ranks are ready for, whether or not they agree on it.
struct ReadyTensor {
  std::shared_ptr<const Agreement> agreement;  // Null when they disagree.
  Readiness disagreement;                      // Else without variants.

  const Request& request() const {
    return agreement != nullptr ? agreement->request : disagreement.request();
  }
};

// GroupGate: holds members of a group at the root until all of them are ready on all ranks. Pure.
// Owned by the root's Negotiator. Tensors without a group pass at once.
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
