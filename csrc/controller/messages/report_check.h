// Report check: whether what a child reports can be true. Pure.
// Everything a peer sends is checked here or while decoding, so that the rest may rely on it.
#pragma once

#include "base/status.h"
#include "controller/messages/report.h"
#include "controller/messages/response.h"
#include "controller/tree.h"

namespace mydist {

// kInternal, saying what is wrong.
// What ranks have done, only a vertex above them may tell.
Status CheckSpeaker(const Report& report, const Lane& lane);
Status CheckReadiness(const Readiness& readiness, const Lane& lane, ProcessSetId process_set);
Status CheckNote(const StallNote& note, const Lane& lane, ProcessSetId process_set);

// Whether the ranks a request names, its root among them, can be right. kInvalidArgument.
Status CheckRanks(const Request& request, const ProcessSet& set);

// Whether the request of the set's member number `index` is covered by what was agreed on.
bool MatchesAgreement(const Request& request, const Agreement& agreement, int32_t index);

}  // namespace mydist
