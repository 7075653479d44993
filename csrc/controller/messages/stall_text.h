// Stall text: tells the user which ranks a tensor waits for, and which name may be meant. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "controller/pending_tensors.h"
#include "controller/readiness.h"

namespace mydist {

struct StallContext {
  const std::vector<std::string>* hosts = nullptr;
  std::span<const int64_t> pids;
  // Everything else that waits; searched for a name that looks alike and waits the other way round.
  const std::vector<WaitingTensor>* others = nullptr;
  // Names of further tensors that wait for the same ranks.
  std::span<const std::string> more{};
};

// "allreduce 'x' waits for rank 3 (host b) since 10 s; ready on ranks 0-2. …"
std::string StallText(const WaitingTensor& tensor, Duration waited, const StallContext& context);

// The names of a tensor and of its near miss, side by side, and the likely cause.
std::string NearMissHint(const WaitingTensor& tensor, const WaitingTensor& near_miss);

// StallWarnings: what is said of the tensors that have waited too long at one time: one text for
// all that wait for the same ranks. One that has a near miss has a text of its own.
class StallWarnings {
 public:
  // `context` outlives this object; its `more` is not used.
  explicit StallWarnings(const StallContext* context) : context_(context) {}

  void Add(WaitingTensor tensor, Duration waited);
  struct Warning {
    std::string name;  // Of the first tensor; empty: of no single one.
    std::string text;
    std::vector<int32_t> missing;  // The ranks that it waits for.
  };
  // At most kMost of them, and one that counts the rest.
  static constexpr size_t kMost = 20;
  std::vector<Warning> Take() &&;

 private:
  struct Wait {
    WaitingTensor first;
    Duration waited{};
    bool has_near_miss = false;
    std::vector<std::string> more;
  };
  const StallContext* const context_;
  std::vector<Wait> waits_;
};

// The same for a group of which only `ready_count` members are ready on all ranks.
std::string GroupStallText(const Request& member, size_t ready_count, Duration waited);

// The one among `others` that is probably the same tensor under another name: it is ready on none
// of the ranks that are ready for `tensor`, has the same op, dtype and shape or a similar name. In
// another process set: a similar name, and ready on a rank that is missing.
// Null when there is none.
const WaitingTensor* FindNearMiss(const WaitingTensor& tensor,
                                  const std::vector<WaitingTensor>& others);

// Mismatch text: tells the user on which properties of a tensor the ranks disagree. Pure.

// A head naming tensor, op and properties, one row per variant, and what to do. `readiness` has
// several variants, or one whose values are not accepted; `hosts` (of each rank) may be empty.
std::string MismatchText(const Readiness& readiness, const std::vector<std::string>& hosts);

// The ranks whose values are not accepted, ascending.
std::vector<int32_t> RanksNotAccepted(const Readiness& readiness);

// Why a member of a group fails whose own ranks agree: another member's text.
std::string GroupFailureText(const std::string& name, const std::string& group,
                             const std::string& cause);

}  // namespace mydist
