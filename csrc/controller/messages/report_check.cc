#include "controller/messages/report_check.h"

#include <algorithm>
#include <functional>
#include <string>

#include "world/rank_list.h"

namespace mydist {
namespace {

Status Wrong(const Request& request, const std::string& what) {
  return Status::Internal("a report about tensor '" + request.name + "' " + what);
}

// Ascending, without duplicates, all in the lane.
bool AreRanksOf(const Lane& lane, const std::vector<int32_t>& ranks) {
  const bool ascending = std::adjacent_find(ranks.begin(), ranks.end(), [](int32_t a, int32_t b) {
                           return a >= b;
                         }) == ranks.end();
  return ascending &&
         std::includes(lane.ranks.begin(), lane.ranks.end(), ranks.begin(), ranks.end());
}

Status CheckAgreed(const Readiness& readiness, const Lane& lane) {
  const bool gathers = GathersRows(readiness.request().op);
  const size_t expected = gathers ? lane.ranks.size() : 0;
  if (readiness.first_dims.size() != expected) {
    return Wrong(readiness.request(), "has " + std::to_string(readiness.first_dims.size()) +
                                          " first dimensions, expected " +
                                          std::to_string(expected));
  }
  if (!readiness.variants.front().ranks.empty() || readiness.unlisted_rank_count != 0) {
    return Wrong(readiness.request(), "lists ranks although they agree");
  }
  return Status::Ok();
}

bool AnyAgree(const std::vector<Variant>& variants) {
  for (size_t i = 0; i < variants.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (Agree(variants[i].request, variants[j].request)) return true;
    }
  }
  return false;
}

Status CheckDisagreed(const Readiness& readiness, const Lane& lane) {
  if (!readiness.first_dims.empty()) {
    return Wrong(readiness.request(), "has first dimensions although the ranks disagree");
  }
  size_t rank_count = 0;
  for (const Variant& variant : readiness.variants) {
    if (variant.ranks.empty() || !AreRanksOf(lane, variant.ranks)) {
      return Wrong(readiness.request(), "lists ranks outside the sender's subtree");
    }
    rank_count += variant.ranks.size();
  }
  if (AnyAgree(readiness.variants)) {
    return Wrong(readiness.request(), "lists the same request as two different ones");
  }
  const int64_t unlisted = readiness.unlisted_rank_count;
  // Fewer than all: those that have joined, or have no part in a send/recv, made no request.
  if (unlisted < 0 || rank_count + static_cast<uint64_t>(unlisted) > lane.ranks.size()) {
    return Wrong(readiness.request(), "speaks for more ranks than the sender's subtree has");
  }
  return Status::Ok();
}

// Every rank has to see the item, and the global set is always there.
Status CheckChange(const Request& request, const ProcessSet& set) {
  if (!ChangesProcessSets(request.op)) return Status::Ok();
  const bool adds = request.op == OpKind::kAddProcessSet;
  if (adds == (set.id == kGlobalProcessSet)) return Status::Ok();
  return Status::InvalidArgument(
      std::string(OpKindName(request.op)) + " '" + request.name + "' is for process set " +
      std::to_string(set.id) +
      (adds ? ", expected 0, since every rank takes part." : ", which cannot be removed."));
}

}  // namespace

Status CheckSpeaker(const Report& report, const Lane& lane) {
  const auto check = [&](int32_t rank, const char* what) {
    if (std::binary_search(lane.ranks.begin(), lane.ranks.end(), rank)) return Status::Ok();
    return Status::Internal(std::string("it reports that a rank has ") + what + ": rank " +
                            std::to_string(rank) + ", which is not in the sender's subtree (" +
                            RankListText(lane.ranks) + ")");
  };
  for (const int32_t rank : report.joins) MYDIST_RETURN_IF_ERROR(check(rank, "joined"));
  for (const Departure& departure : report.departures) {
    MYDIST_RETURN_IF_ERROR(check(departure.rank, "left"));
  }
  for (const ThawNote& note : report.thaws) {
    MYDIST_RETURN_IF_ERROR(check(note.rank, note.is_done ? "thawed" : "asked for a thaw"));
  }
  return Status::Ok();
}

Status CheckReadiness(const Readiness& readiness, const Lane& lane, ProcessSetId process_set) {
  for (const Variant& variant : readiness.variants) {
    if (variant.request.name != readiness.name()) {
      return Wrong(readiness.request(), "also speaks of '" + variant.request.name + "'");
    }
    if (variant.request.process_set != process_set) {
      return Wrong(readiness.request(), "is for process set " +
                                            std::to_string(variant.request.process_set) +
                                            ", expected " + std::to_string(process_set));
    }
  }
  return readiness.agreed() ? CheckAgreed(readiness, lane) : CheckDisagreed(readiness, lane);
}

Status CheckNote(const StallNote& note, const Lane& lane, ProcessSetId process_set) {
  if (note.request.process_set != process_set) {
    return Wrong(note.request, "is for process set " + std::to_string(note.request.process_set) +
                                   ", expected " + std::to_string(process_set));
  }
  if (note.missing.empty() || !AreRanksOf(lane, note.missing)) {
    return Wrong(note.request, "lists ranks outside the sender's subtree as missing");
  }
  return Status::Ok();
}

Status CheckRanks(const Request& request, const ProcessSet& set) {
  MYDIST_RETURN_IF_ERROR(CheckChange(request, set));
  const std::vector<int32_t>& ranks = request.ranks;
  const bool pair = request.op == OpKind::kSendReceive;
  const bool adds = request.op == OpKind::kAddProcessSet;
  const bool right_count = pair ? ranks.size() == 2 : adds ? !ranks.empty() : ranks.empty();
  const bool are_members = std::all_of(ranks.begin(), ranks.end(),
                                       [&](int32_t rank) { return set.IndexOf(rank).has_value(); });
  const bool is_ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  const bool is_ordered = pair ? ranks.front() != ranks.back() : is_ascending;
  if (HasRoot(request.op) && !set.IndexOf(request.root_rank)) {
    return Status::InvalidArgument(std::string(OpKindName(request.op)) + " '" + request.name +
                                   "' has root " + std::to_string(request.root_rank) +
                                   ", expected a rank of process set " + std::to_string(set.id) +
                                   ". Pass the global rank of a member.");
  }
  if (right_count && are_members && is_ordered) return Status::Ok();
  const std::string expected = pair   ? "two different ranks of process set "
                               : adds ? "ranks in ascending order, each once, of process set "
                                      : "none in process set ";
  return Status::InvalidArgument(std::string(OpKindName(request.op)) + " '" + request.name +
                                 "' names " + RankListText(ranks) + ", expected " + expected +
                                 std::to_string(set.id) + ".");
}

bool MatchesAgreement(const Request& request, const Agreement& agreement, int32_t index) {
  if (!Agree(request, agreement.request)) return false;
  if (!GathersRows(request.op)) return true;
  const auto position = static_cast<size_t>(index);
  return position < agreement.first_dims.size() &&
         agreement.first_dims[position] == FirstDimOf(request);
}

}  // namespace mydist
