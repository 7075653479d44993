#include "controller/membership.h"

namespace mydist {

Status Membership::Depart(Departure departure) {
  if (departure.rank < 0 || static_cast<size_t>(departure.rank) >= departed_.size()) {
    return Status::Internal("rank " + std::to_string(departure.rank) +
                            " is reported to have left, expected 0 to " +
                            std::to_string(departed_.size() - 1));
  }
  const auto rank = static_cast<size_t>(departure.rank);
  if (departed_[rank]) return Status::Ok();
  departed_[rank] = true;
  ++departed_count_;
  departures_.push_back(std::move(departure));
  return Status::Ok();
}

Status Membership::TakeReport(const Report& report) {
  for (const Departure& departure : report.departures) MYDIST_RETURN_IF_ERROR(Depart(departure));
  for (const TimelineControl& control : report.timeline) Control(control);
  return Status::Ok();
}

void Membership::FillReport(Report& report) {
  report.departures = std::exchange(departures_, {});
  report.timeline = std::exchange(controls_, {});
}

std::vector<StreamItem> Membership::Decide() {
  std::vector<StreamItem> items;
  for (const TimelineControl& control : std::exchange(controls_, {})) {
    StreamItem& item = items.emplace_back();
    item.kind = control.start ? StreamKind::kTimelineStart : StreamKind::kTimelineStop;
    item.flag = control.mark_cycles;
  }
  const bool finishes = !departures_.empty() && departed_count_ == departed_.size();
  for (Departure& departure : std::exchange(departures_, {})) {
    StreamItem& item = items.emplace_back();
    item.kind = StreamKind::kDeparted;
    item.rank = departure.rank;
    item.text = std::move(departure.reason);
  }
  if (finishes) items.emplace_back().kind = StreamKind::kFinished;
  return items;
}

}  // namespace mydist
