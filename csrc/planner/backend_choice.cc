#include "planner/backend_choice.h"

#include <algorithm>

namespace mydist {
namespace {

Result<BackendChoice> ChooseLocal(const BackendFacts& facts) {
  if (!facts.is_one_host) {
    return Status::InvalidArgument(
        "MYDIST_CONTROLLER=local is for jobs of one host, but the ranks are on several; leave it "
        "unset, or use gloo or mpi");
  }
  if (facts.no_arena_reason.empty()) return BackendChoice{"local", "it was asked for"};
  return Status::Internal(
      "MYDIST_CONTROLLER=local needs memory that the ranks share, and there is none: " +
      facts.no_arena_reason);
}

Status NothingFits(const BackendFacts& facts) {
  const std::string need =
      facts.is_one_host
          ? "the ranks of this host do not share memory (" + facts.no_arena_reason + ")"
          : std::string("ranks on several hosts cannot talk through shared memory");
  return Status::Internal(need + " and Gloo is not to be had (" + facts.no_gloo_reason + "). " +
                          (facts.is_one_host ? "Mend the one or install the other" : "Install it") +
                          ", or start the job with MPI: mydistrun --mpi");
}

}  // namespace

bool MayTakeGloo(const BackendFacts& facts) {
  if (facts.asked == "local") return false;
  return facts.asked == "gloo" || !facts.is_one_host || !facts.no_arena_reason.empty();
}

std::string NoGlooReason(const std::vector<std::string>& reasons,
                         const std::vector<std::string>& hosts) {
  const auto lacks = [](const std::string& reason) { return !reason.empty(); };
  const auto first = std::find_if(reasons.begin(), reasons.end(), lacks);
  if (first == reasons.end()) return "";
  if (std::all_of(reasons.begin(), reasons.end(), lacks)) return *first;
  const auto rank = static_cast<size_t>(first - reasons.begin());
  return "rank " + std::to_string(rank) + " (host " + hosts[rank] +
         ") has none, other ranks do; install the same build of mydist on every host: " + *first;
}

Result<BackendChoice> ChooseBackend(const BackendFacts& facts) {
  if (facts.asked == "local") return ChooseLocal(facts);
  if (facts.asked == "gloo" && facts.no_gloo_reason.empty()) {
    return BackendChoice{"gloo", "it was asked for"};
  }
  if (facts.asked == "gloo") return Status::Internal(facts.no_gloo_reason);
  const bool has_arena = facts.no_arena_reason.empty();
  if (facts.is_one_host && has_arena) {
    return BackendChoice{"local", "all ranks are on one host and share memory"};
  }
  if (!facts.no_gloo_reason.empty()) return NothingFits(facts);
  if (!facts.is_one_host) return BackendChoice{"gloo", "the ranks are on several hosts"};
  return BackendChoice{"gloo", "the ranks do not share memory: " + facts.no_arena_reason};
}

}  // namespace mydist
