// Readiness: "this whole subtree is ready for the tensor", with what its ranks requested. Pure.
// Travels up the tree when the tensor is not cached. Invariants: at least one variant; no two
// variants agree; with one variant all ranks of the subtree requested the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "controller/messages/request.h"
#include "controller/messages/response.h"
#include "controller/tree.h"

namespace mydist {

// One way in which the tensor was requested.
struct Variant {
  Request request;             // RankIndependent.
  std::vector<int32_t> ranks;  // That requested it so, ascending; empty for a single variant.
};

// Ranks of further variants are only counted, so that a report stays small when all disagree.
inline constexpr size_t kMaxVariants = 64;

struct Readiness {
  std::vector<Variant> variants;
  // Of what GathersRows, with one variant: per rank of the subtree.
  std::vector<int64_t> first_dims;
  int64_t unlisted_rank_count = 0;  // Ranks whose variant was dropped.

  const Request& request() const { return variants.front().request; }
  const std::string& name() const { return variants.front().request.name; }
  bool agreed() const { return variants.size() == 1; }
};

// What one rank requested.
Readiness MakeReadiness(const Request& request);

// The first dimension a rank contributes to what GathersRows; a 0-d tensor counts as length 1.
int64_t FirstDimOf(const Request& request);

// A readiness and the ranks it speaks for, ascending.
struct ReadinessPart {
  const Readiness* readiness = nullptr;         // Null: none of them was asked.
  const std::vector<int32_t>* ranks = nullptr;  // A rank that was not asked contributes no rows.
  std::vector<int32_t> asked;                   // Those among them that made the request.
};

// The readiness of all parts together; names are equal, rank lists disjoint, some part was asked.
// Independent of the order of the parts but for which of equal requests stands for the others.
Readiness MergeReadiness(std::span<const ReadinessPart> parts);

// EndedNames: errors a child may not have seen yet. Pure; owned by the Negotiator of one vertex.
// What a child reported before it applied an error belongs to the attempt that error ended and
// must not count for the next one. (Cached tensors need no entry: the error frees their slot.)
class EndedNames {
 public:
  // `position`: of the stream after the error.
  void Add(StreamItem error, uint64_t position) { errors_.push_back({std::move(error), position}); }

  // Whether a report made at `position` speaks of an ended attempt.
  bool Covers(const Request& request, uint64_t position) const {
    return std::any_of(errors_.begin(), errors_.end(), [&](const Entry& entry) {
      return position < entry.position && Ends(entry.error, request);
    });
  }

  // All children have reported at `position` or later.
  void Purge(uint64_t position) {
    std::erase_if(errors_, [&](const Entry& entry) { return entry.position <= position; });
  }

 private:
  struct Entry {
    StreamItem error;
    uint64_t position;
  };
  std::vector<Entry> errors_;
};

// Participation: which ranks a vertex waits for. Pure; owned by the Negotiator of one process set.
// Every rank of every lane takes part, except: a rank that has joined contributes neutral elements
// until all have joined, and a send/recv has two ranks.
class Participation {
 public:
  // `vertex` must outlive this object.
  explicit Participation(const Vertex& vertex) : vertex_(vertex) {}

  // The rank has nothing to contribute from now on. Ranks the vertex does not know are ignored.
  void Join(int32_t rank);
  // All have joined, and all are back.
  void Reset() { joined_.clear(); }
  bool HasJoined(int32_t rank) const { return joined_.contains(rank); }
  bool anybody_joined() const { return !joined_.empty(); }

  // Whether some rank of the lane has not joined.
  bool Awaits(size_t lane) const;
  // The ranks of the lane that have to be ready for the request, ascending.
  std::vector<int32_t> Awaited(size_t lane, const Request& request) const;
  // Whether there is one.
  bool Awaits(size_t lane, const Request& request) const;

 private:
  bool Counts(const Request& request, int32_t rank) const {
    return !joined_.contains(rank) && TakesPart(request, rank);
  }

  const Vertex& vertex_;
  std::set<int32_t> joined_;
};

}  // namespace mydist
