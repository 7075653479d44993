#include "controller/negotiator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "controller/report_check.h"
#include "controller/request_codec.h"

namespace mydist {
namespace {

// Inner vertices tell their parent early, so that the root knows who is missing when its own
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

Negotiator::Negotiator(Vertex vertex, NegotiatorOptions options)
    : vertex_(std::move(vertex)),
      options_(std::move(options)),
      cache_(options_.cache_capacity),
      pending_(vertex_, cache_, WarningOf(vertex_, options_), ShutdownOf(vertex_, options_)),
      lane_positions_(vertex_.lanes.size()),
      group_stalls_(options_.stall_warning, options_.stall_shutdown) {}

Status Negotiator::Submit(const std::vector<Request>& requests, TimePoint now) {
  if (departed_) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(CheckSubmission(requests));
  for (const Request& request : requests) Announce(request, now);
  return Status::Ok();
}

Status Negotiator::CheckSubmission(const std::vector<Request>& requests) const {
  std::set<std::string_view> names;
  for (const Request& request : requests) {
    MYDIST_RETURN_IF_ERROR(CheckRequest(request));
    if (request.process_set != options_.process_set) {
      return Status::InvalidArgument(
          "tensor '" + request.name + "': process set " + std::to_string(request.process_set) +
          " is unknown, expected " + std::to_string(options_.process_set) + ".");
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
  const bool valid = slot && MatchesAgreement(request, *cache_.At(*slot), vertex_.rank);
  if (slot && !valid) invalid_slots_.insert(*slot);
  ++(valid ? stats_.cache_hits : stats_.cache_misses);
  const bool is_new = own_.Add(request, valid ? slot : std::nullopt) &&
                      (valid ? AddSlot(*slot, 0, now) : AddRequest(0, MakeReadiness(request), now));
  MYDIST_CHECK(is_new);
}

Status Negotiator::TakeReport(int32_t peer, const Report& report, TimePoint now) {
  const auto lane = vertex_.LaneOf(peer);
  if (!lane) return Status::Internal("a report came from a rank that is no child of this one");
  if (report.stream_position < lane_positions_[*lane] || report.stream_position > position_) {
    return Status::Internal("a report was made at stream position " +
                            std::to_string(report.stream_position) + ", expected " +
                            std::to_string(lane_positions_[*lane]) + " to " +
                            std::to_string(position_));
  }
  lane_positions_[*lane] = report.stream_position;
  stats_.entries_received += report.ready_slots.size() + report.ready_requests.size();
  if (departed_) return Status::Ok();
  MYDIST_RETURN_IF_ERROR(TakeSlots(*lane, report, now));
  MYDIST_RETURN_IF_ERROR(TakeRequests(*lane, report, now));
  MYDIST_RETURN_IF_ERROR(TakeNotes(*lane, report, now));
  if (!ended_.empty()) {
    ended_.Purge(*std::min_element(lane_positions_.begin() + 1, lane_positions_.end()));
  }
  return Status::Ok();
}

// A slot number means what it meant where the sender stood in the stream.
Negotiator::SlotReference Negotiator::Judge(uint32_t slot, uint64_t position) const {
  if (slot >= cache_.slot_count()) return SlotReference::kWrong;
  if (position < cache_.ChangedAt(slot)) return SlotReference::kOutdated;
  return cache_.At(slot) != nullptr ? SlotReference::kValid : SlotReference::kWrong;
}

Status Negotiator::TakeSlots(size_t lane, const Report& report, TimePoint now) {
  const auto wrong = [](uint32_t slot, const char* what) {
    return Status::Internal("a report names cache slot " + std::to_string(slot) + ", which " +
                            what);
  };
  for (const uint32_t slot : report.invalid_slots) {
    const SlotReference reference = Judge(slot, report.stream_position);
    if (reference == SlotReference::kWrong) return wrong(slot, "is empty");
    if (reference == SlotReference::kValid) invalid_slots_.insert(slot);
  }
  for (const uint32_t slot : report.ready_slots) {
    const SlotReference reference = Judge(slot, report.stream_position);
    if (reference == SlotReference::kWrong) return wrong(slot, "is empty");
    if (reference == SlotReference::kValid && !AddSlot(slot, lane, now)) {
      return wrong(slot, "it has already reported");
    }
  }
  return Status::Ok();
}

Status Negotiator::TakeRequests(size_t lane, const Report& report, TimePoint now) {
  for (const Readiness& readiness : report.ready_requests) {
    MYDIST_RETURN_IF_ERROR(CheckReadiness(readiness, vertex_.lanes[lane], options_.process_set));
    const bool outdated = std::any_of(
        readiness.variants.begin(), readiness.variants.end(), [&](const Variant& variant) {
          return ended_.Covers(variant.request, report.stream_position);
        });
    if (!outdated && !AddRequest(lane, readiness, now)) {
      return Status::Internal("tensor '" + readiness.name() + "' was reported ready twice");
    }
  }
  return Status::Ok();
}

Status Negotiator::TakeNotes(size_t lane, const Report& report, TimePoint now) {
  for (const StallNote& note : report.stalls) {
    MYDIST_RETURN_IF_ERROR(CheckNote(note, vertex_.lanes[lane], options_.process_set));
    if (!ended_.Covers(note.request, report.stream_position)) pending_.AddNote(lane, note, now);
  }
  return Status::Ok();
}

bool Negotiator::AddSlot(uint32_t slot, size_t lane, TimePoint now) {
  const PendingTensors::Outcome outcome = pending_.AddSlot(slot, lane, now);
  if (outcome != PendingTensors::Outcome::kComplete) {
    return outcome == PendingTensors::Outcome::kWaiting;
  }
  if (vertex_.is_root()) {
    complete_.push_back({cache_.At(slot), {}});
  } else {
    ready_slots_.push_back(slot);
  }
  return true;
}

bool Negotiator::AddRequest(size_t lane, Readiness readiness, TimePoint now) {
  const std::string name = readiness.name();
  const PendingTensors::Outcome outcome = pending_.AddRequest(lane, std::move(readiness), now);
  if (outcome != PendingTensors::Outcome::kComplete) {
    return outcome == PendingTensors::Outcome::kWaiting;
  }
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
  return true;
}

void Negotiator::FillReport(Report& report, TimePoint now) {
  MYDIST_CHECK(!vertex_.is_root());
  for (const StallEvent& event : pending_.TakeDue(now)) pending_.Watch(event.name);
  report.stream_position = position_;
  report.ready_slots = std::exchange(ready_slots_, {});
  std::sort(report.ready_slots.begin(), report.ready_slots.end());
  report.ready_requests = std::exchange(ready_requests_, {});
  report.stalls = pending_.TakeNotes(now);
  report.invalid_slots.assign(invalid_slots_.begin(), invalid_slots_.end());
  invalid_slots_.clear();
}

bool Negotiator::HasNews() const {
  if (departed_) return false;
  return !ready_slots_.empty() || !ready_requests_.empty() || !invalid_slots_.empty() ||
         !complete_.empty() || (!vertex_.is_root() && pending_.HasNotes());
}

TimePoint Negotiator::NextDeadline() {
  return std::min(pending_.NextDeadline(), group_stalls_.NextDeadline());
}

}  // namespace mydist
