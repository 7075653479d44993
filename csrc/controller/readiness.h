// Readiness: "this whole subtree is ready for the tensor", with what its ranks requested. Pure.
// Travels up the tree when the tensor is not cached. Invariants: at least one variant; no two
// variants agree; with one variant all ranks of the subtree requested the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "controller/messages/request.h"

namespace mydist {

// One way in which the tensor was requested.
struct Variant {
  Request request;             // RankIndependent.
  std::vector<int32_t> ranks;  // Who requested it so, ascending; empty for a single variant.
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
  const Readiness* readiness = nullptr;         // Null: nobody of them was asked.
  const std::vector<int32_t>* ranks = nullptr;  // Who was not asked contributes no rows.
  std::vector<int32_t> asked;                   // Those among them that made the request.
};

// The readiness of all parts together; names are equal, rank lists disjoint, some part was asked.
// Independent of the order of the parts but for which of equal requests stands for the others.
Readiness MergeReadiness(std::span<const ReadinessPart> parts);

}  // namespace mydist
