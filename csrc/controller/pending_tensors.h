// PendingTensors: the tensors this vertex waits for, which lanes are ready, and since when. Pure.
// Owned by the Negotiator of one vertex. A tensor leaves when its whole subtree is ready, when its
// slot is lost or when an error ends it. Waiting ones are watched by a stall inspector; what
// children noted about their own subtrees says which ranks are really missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "controller/messages/report.h"
#include "controller/messages/request.h"
#include "controller/messages/response.h"
#include "controller/readiness.h"
#include "controller/response_cache.h"
#include "controller/tree.h"

namespace mydist {

// StallInspector: which tensors have been waiting too long. Pure; `now` is an argument.
// Owned by the Negotiator of one vertex. A wait is reported after `warning`, then at 2, 4, 8 …
// times that, and expires once after `shutdown`. Starting and stopping a wait cost O(1).
struct StallEvent {
  std::string name;  // As given to Start.
  Duration waited = Duration::zero();
  bool expired = false;  // `shutdown` has passed. The wait is still to be stopped by the caller.
};

class StallInspector {
 public:
  // Zero (or less) switches the warning or the expiry off.
  StallInspector(Duration warning, Duration shutdown);

  // Begins a wait and returns its number, never 0. `since` may lie in the past.
  uint64_t Start(std::string name, TimePoint since, TimePoint now);
  // Ends it; unknown numbers are ignored.
  void Stop(uint64_t wait);
  bool IsWaiting(uint64_t wait) const { return waits_.contains(wait); }
  TimePoint Since(uint64_t wait) const;  // Of a wait that has not been stopped.

  // Events due at `now`, oldest wait first; each is returned once.
  std::vector<StallEvent> TakeDue(TimePoint now);
  // When TakeDue next has something; kNever when nothing waits.
  TimePoint NextDeadline();
  std::vector<std::string> Names() const;  // Of all waits, in alphabetical order.
  void Clear();

 private:
  struct Wait {
    std::string name;
    TimePoint since;
    Duration next_warning;  // After `since`; Duration::max(): none.
    bool expired = false;
  };

  bool enabled() const { return first_due_ != Duration::max(); }
  TimePoint DueOf(const Wait& wait) const;
  void Collect(uint64_t number, TimePoint now, std::vector<StallEvent>& events);

  Duration warning_;
  Duration shutdown_;
  Duration first_due_;  // After the beginning of a wait; max(): never.
  uint64_t last_number_ = 0;
  std::unordered_map<uint64_t, Wait> waits_;
  std::deque<uint64_t> fresh_;  // Begun in order of time, nothing reported yet; may be stopped.
  std::vector<uint64_t> late_;  // Reported at least once, or begun in the past.
};

// PendingRequests: for each tensor that is not cached, which lanes of this vertex are ready for it
// and with what. Pure. Owned by the Negotiator of one vertex.
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

  // Whether the lane is ready for a tensor that waits for others.
  bool IsReady(const std::string& name, size_t lane) const;

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
