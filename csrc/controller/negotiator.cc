#include "controller/negotiator.h"

#include <algorithm>

#include "controller/messages/wire.h"

namespace mydist {
namespace {

// Inner vertices tell their parent early, so that the root knows the missing ranks when its own
// warning is due.
Duration WarningOf(const Vertex& vertex, const NegotiatorOptions& options) {
  if (vertex.is_root()) return options.stall_warning;
  const bool warns = options.stall_warning > Duration::zero();
  // Without warnings the root must still hear of the stall it is to end.
  return (warns ? options.stall_warning : options.stall_shutdown) / 2;
}

Duration ShutdownOf(const Vertex& vertex, const NegotiatorOptions& options) {
  return vertex.is_root() ? options.stall_shutdown : Duration::zero();
}

}  // namespace

Negotiator::Negotiator(ProcessSet set, const Vertex& vertex, NegotiatorOptions options,
                       StreamState* stream)
    : set_(std::move(set)),
      vertex_(Restrict(vertex, set_.ranks)),
      own_index_(set_.IndexOf(vertex_.rank).value_or(-1)),
      options_(std::move(options)),
      stream_(stream),
      cache_(options_.cache_capacity),
      participation_(vertex_),
      pending_(vertex_, participation_, cache_,
               StallInspector(WarningOf(vertex_, options_), ShutdownOf(vertex_, options_))),
      group_stalls_(options_.stall_warning, options_.stall_shutdown) {}

Status Negotiator::Submit(const std::vector<Request>& requests, TimePoint now) {
  if (closed_) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(CheckSubmission(requests));
  MYDIST_RETURN_IF_ERROR(TakeMissed(requests));
  for (const Request& request : requests) Announce(request, now);
  return Status::Ok();
}

// A call that the other ranks have given up waiting for fails as theirs did.
Status Negotiator::TakeMissed(const std::vector<Request>& requests) {
  for (const Request& request : requests) {
    const auto missed = std::find_if(missed_.begin(), missed_.end(),
                                     [&](const StreamItem& error) { return Ends(error, request); });
    if (missed == missed_.end()) continue;
    const Status status = ErrorOf(*missed);
    missed_.erase(missed);
    return status;
  }
  return Status::Ok();
}

Status Negotiator::CheckSubmission(const std::vector<Request>& requests) const {
  std::set<std::string_view> names;
  for (const Request& request : requests) {
    MYDIST_RETURN_IF_ERROR(CheckRequest(request));
    MYDIST_CHECK(request.process_set == set_.id);
    MYDIST_RETURN_IF_ERROR(CheckRanks(request, set_));
    if (!vertex_.is_member || !TakesPart(request, vertex_.rank)) {
      return Status::InvalidArgument(
          "tensor '" + request.name + "': rank " + std::to_string(vertex_.rank) +
          " does not take part in it; the call is for " +
          RankListText(request.ranks.empty() ? set_.ranks : request.ranks) + " only.");
    }
    if (own_.Contains(request.name) || !names.insert(request.name).second) {
      return Status::InvalidArgument("tensor '" + request.name +
                                     "' is still in flight. Wait for it, or give the second one "
                                     "another name.");
    }
  }
  return Status::Ok();
}

void Negotiator::Announce(const Request& request, TimePoint now) {
  const auto slot = cache_.Find(request.name);
  const bool valid = slot && MatchesAgreement(request, *cache_.At(*slot), own_index_);
  if (slot && !valid) invalid_slots_.insert(*slot);
  ++(valid ? stats_.cache_hits : stats_.cache_misses);
  const bool is_new = own_.Add(request, valid ? slot : std::nullopt) &&
                      (valid ? AddSlot(*slot, 0, now) : AddRequest(0, MakeReadiness(request), now));
  MYDIST_CHECK(is_new);
}

Status Negotiator::TakeReport(int32_t peer, const SetReport& report, uint64_t position,
                              TimePoint now) {
  const auto lane = vertex_.LaneOf(peer);
  if (!lane) {
    return Status::Internal("a report about process set " + std::to_string(set_.id) +
                            " came from a rank whose subtree has no member of the set");
  }
  stats_.entries_received += std::ssize(report.ready_slots) + std::ssize(report.ready_requests);
  if (closed_ || position < frozen_at_) return Status::Ok();
  const Source source{*lane, position};
  MYDIST_RETURN_IF_ERROR(TakeSlots(source, report, now));
  MYDIST_RETURN_IF_ERROR(TakeRequests(source, report, now));
  return TakeNotes(source, report, now);
}

void Negotiator::Join(int32_t rank) {
  const std::optional<int> index = set_.IndexOf(rank);
  if (!index || closed_) return;
  participation_.Join(rank);
  pending_.UpdateActiveLanes();
  if (vertex_.is_root()) {
    // It contributes no rows any more, and agreements state the rows of each rank.
    const auto counts_its_rows = [&](const Agreement& agreement) {
      return !agreement.first_dims.empty() &&
             agreement.first_dims[static_cast<size_t>(*index)] != 0;
    };
    for (const uint32_t slot : cache_.Where(counts_its_rows)) invalid_slots_.insert(slot);
  }
  for (const uint32_t slot : pending_.TakeCompleteSlots()) CompleteSlot(slot);
  for (const std::string& name : pending_.CompleteRequests()) CompleteRequest(name);
}

void Negotiator::ResetJoined() {
  participation_.Reset();
  missed_.clear();  // All ranks begin anew.
  pending_.UpdateActiveLanes();
}

// A slot number means what it meant where the sender stood in the stream.
Negotiator::SlotReference Negotiator::Judge(uint32_t slot, uint64_t position) const {
  if (slot >= cache_.slot_count()) return SlotReference::kWrong;
  if (position < cache_.ChangedAt(slot)) return SlotReference::kOutdated;
  return cache_.At(slot) != nullptr ? SlotReference::kValid : SlotReference::kWrong;
}

Status Negotiator::TakeSlots(Source source, const SetReport& report, TimePoint now) {
  const auto wrong = [](uint32_t slot, const char* what) {
    return Status::Internal("a report names cache slot " + std::to_string(slot) + ", which " +
                            what);
  };
  for (const uint32_t slot : report.invalid_slots) {
    const SlotReference reference = Judge(slot, source.position);
    if (reference == SlotReference::kWrong) return wrong(slot, "is empty");
    if (reference == SlotReference::kValid) invalid_slots_.insert(slot);
  }
  for (const uint32_t slot : report.ready_slots) {
    const SlotReference reference = Judge(slot, source.position);
    if (reference == SlotReference::kWrong) return wrong(slot, "is empty");
    if (reference == SlotReference::kValid && !AddSlot(slot, source.lane, now)) {
      return wrong(slot, "it has already reported");
    }
  }
  return Status::Ok();
}

Status Negotiator::TakeRequests(Source source, const SetReport& report, TimePoint now) {
  for (const Readiness& readiness : report.ready_requests) {
    for (const Variant& variant : readiness.variants) {
      MYDIST_RETURN_IF_ERROR(CheckRanks(variant.request, set_));
    }
    MYDIST_RETURN_IF_ERROR(CheckReadiness(readiness, vertex_.lanes[source.lane], set_.id));
    if (!participation_.Awaits(source.lane, readiness.request())) {
      return Status::Internal(
          "tensor '" + readiness.name() +
          "' was reported ready by ranks that do not take part in it or have joined");
    }
    const bool outdated = std::any_of(
        readiness.variants.begin(), readiness.variants.end(),
        [&](const Variant& variant) { return ended_.Covers(variant.request, source.position); });
    if (!outdated && !AddRequest(source.lane, readiness, now)) {
      return Status::Internal("tensor '" + readiness.name() + "' was reported ready twice");
    }
  }
  return Status::Ok();
}

Status Negotiator::TakeNotes(Source source, const SetReport& report, TimePoint now) {
  for (const StallNote& note : report.stalls) {
    MYDIST_RETURN_IF_ERROR(CheckNote(note, vertex_.lanes[source.lane], set_.id));
    if (!ended_.Covers(note.request, source.position)) pending_.AddNote(source.lane, note, now);
  }
  return Status::Ok();
}

bool Negotiator::AddSlot(uint32_t slot, size_t lane, TimePoint now) {
  const PendingTensors::Outcome outcome = pending_.AddSlot(slot, lane, now);
  if (outcome == PendingTensors::Outcome::kComplete) CompleteSlot(slot);
  return outcome != PendingTensors::Outcome::kDuplicate;
}

void Negotiator::CompleteSlot(uint32_t slot) {
  if (vertex_.is_root()) {
    complete_.push_back({cache_.At(slot), {}});
  } else {
    ready_slots_.push_back(slot);
  }
}

bool Negotiator::AddRequest(size_t lane, Readiness readiness, TimePoint now) {
  const std::string name = readiness.name();
  const PendingTensors::Outcome outcome = pending_.AddRequest(lane, std::move(readiness), now);
  if (outcome == PendingTensors::Outcome::kComplete) CompleteRequest(name);
  return outcome != PendingTensors::Outcome::kDuplicate;
}

void Negotiator::CompleteRequest(const std::string& name) {
  Readiness complete = pending_.TakeComplete(name);
  if (!vertex_.is_root()) {
    ready_requests_.push_back(std::move(complete));
  } else if (complete.agreed()) {
    complete_.push_back({std::make_shared<const Agreement>(
                             Agreement{complete.request(), std::move(complete.first_dims)}),
                         {}});
  } else {
    complete_.push_back({nullptr, std::move(complete)});
  }
}

std::vector<int32_t> Negotiator::MissingRanks(const std::string& name) const {
  const std::optional<WaitingTensor> waiting = pending_.Look(name);
  return waiting ? waiting->missing : std::vector<int32_t>();
}

SetReport Negotiator::TakeReportToParent(TimePoint now) {
  MYDIST_CHECK(!vertex_.is_root());
  SetReport report;
  for (const StallEvent& event : pending_.TakeDue(now)) pending_.Watch(event.name);
  report.ready_slots = std::exchange(ready_slots_, {});
  std::sort(report.ready_slots.begin(), report.ready_slots.end());
  report.ready_requests = std::exchange(ready_requests_, {});
  report.stalls = pending_.TakeNotes(now);
  report.invalid_slots.assign(invalid_slots_.begin(), invalid_slots_.end());
  invalid_slots_.clear();
  return report;
}

bool Negotiator::HasNews() const {
  if (closed_) return false;
  return !ready_slots_.empty() || !ready_requests_.empty() || !invalid_slots_.empty() ||
         !complete_.empty() || (!vertex_.is_root() && pending_.HasNotes());
}

TimePoint Negotiator::NextDeadline() {
  return std::min(pending_.NextDeadline(), group_stalls_.NextDeadline());
}

}  // namespace mydist
