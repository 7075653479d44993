// PendingTensors: the tensors this vertex waits for, which lanes are ready, and since when. Pure.
// Owned by the Negotiator of one vertex. A tensor leaves when its whole subtree is ready, when its
// slot is lost or when an error ends it. Waiting ones are watched by a stall inspector; what
// children noted about their own subtrees says which ranks are really missing.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "controller/messages/report.h"
#include "controller/pending_requests.h"
#include "controller/readiness.h"
#include "controller/response_cache.h"
#include "controller/stall_inspector.h"
#include "controller/tree.h"

namespace mydist {

// A tensor part of the subtree is waiting for.
struct WaitingTensor {
  Request request;               // As one of the waiting ranks requested it.
  std::vector<int32_t> missing;  // Of the vertex's ranks, ascending.
  std::vector<int32_t> ready;    // The others that take part.
};

class PendingTensors {
 public:
  // The references must outlive this object.
  PendingTensors(const Vertex& vertex, const Participation& participation,
                 const ResponseCache& cache, StallInspector stalls);

  enum class Outcome { kWaiting, kComplete, kDuplicate };
  // A lane is ready for a cached tensor; once complete the slot is no longer pending.
  Outcome AddSlot(uint32_t slot, size_t lane, TimePoint now);
  // A lane is ready for a tensor requested in full; when complete, call TakeComplete.
  Outcome AddRequest(size_t lane, Readiness readiness, TimePoint now);
  Readiness TakeComplete(const std::string& name);
  // To be called when fewer ranks, or all again, are waited for.
  void UpdateActiveLanes();
  // What has become complete by that. The slots are forgotten, the requests wait for TakeComplete.
  std::vector<uint32_t> TakeCompleteSlots();
  std::vector<std::string> CompleteRequests();
  // A child says that part of its subtree waits. Replaces its earlier note on the tensor.
  void AddNote(size_t lane, StallNote note, TimePoint now);

  // To be called before the cache frees or reassigns the slot.
  void DropSlot(uint32_t slot);
  void Drop(const StreamItem& error);
  void Clear();

  std::vector<StallEvent> TakeDue(TimePoint now) { return stalls_.TakeDue(now); }
  TimePoint NextDeadline() { return stalls_.NextDeadline(); }
  std::optional<WaitingTensor> Look(const std::string& name) const;
  std::vector<std::string> WaitingNames() const { return stalls_.Names(); }

  // From now on changes of this tensor are noted without delay.
  void Watch(const std::string& name);
  bool HasNotes() const { return !changed_.empty(); }
  // What to tell the parent about watched tensors that changed.
  std::vector<StallNote> TakeNotes(TimePoint now);

 private:
  bool IsReady(const std::string& name, size_t lane) const;
  std::optional<Request> RequestOf(const std::string& name) const;
  uint64_t WaitOf(const std::string& name) const;
  void Progress(const std::string& name, size_t lane);
  void Forget(const std::string& name);  // Notes and watches.

  const Vertex& vertex_;
  const Participation& participation_;
  const ResponseCache& cache_;
  PendingSlots slots_;
  PendingRequests requests_;
  StallInspector stalls_;
  std::map<std::string, std::map<size_t, StallNote>> notes_;  // By tensor and lane.
  std::set<std::string> watched_;
  std::set<std::string> changed_;  // Watched, and to be told to the parent.
};

}  // namespace mydist
