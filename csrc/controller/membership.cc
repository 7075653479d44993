#include "controller/membership.h"

#include <algorithm>

#include "world/departure.h"
#include "world/process_set.h"

namespace mydist {

Status Membership::CheckRank(int32_t rank, const char* what) const {
  if (rank >= 0 && static_cast<size_t>(rank) < departed_.size()) return Status::Ok();
  return Status::Internal("rank " + std::to_string(rank) + " is reported to have " + what +
                          ", expected rank 0 to " + std::to_string(departed_.size() - 1));
}

Status Membership::Join(int32_t rank) {
  MYDIST_RETURN_IF_ERROR(CheckRank(rank, "joined"));
  if (joined_[static_cast<size_t>(rank)]) {
    return Status::Internal("rank " + std::to_string(rank) + " is reported to have joined twice");
  }
  joined_[static_cast<size_t>(rank)] = true;
  ++joined_count_;
  joins_.push_back(rank);
  return Status::Ok();
}

void Membership::ResetJoined() {
  std::fill(joined_.begin(), joined_.end(), false);
  joined_count_ = 0;
}

Status Membership::Depart(Departure departure) {
  MYDIST_RETURN_IF_ERROR(CheckRank(departure.rank, "left"));
  const auto rank = static_cast<size_t>(departure.rank);
  if (departed_[rank]) return Status::Ok();
  departed_[rank] = true;
  ++departed_count_;
  departures_.push_back(std::move(departure));
  return Status::Ok();
}

Status Membership::TakeReport(const Report& report) {
  for (const int32_t rank : report.joins) MYDIST_RETURN_IF_ERROR(Join(rank));
  for (const Departure& departure : report.departures) MYDIST_RETURN_IF_ERROR(Depart(departure));
  for (const TimelineControl& control : report.timeline) Control(control);
  return Status::Ok();
}

void Membership::FillReport(Report& report) {
  report.joins = std::exchange(joins_, {});
  report.departures = std::exchange(departures_, {});
  report.timeline = std::exchange(controls_, {});
}

std::vector<StreamItem> Membership::Decide() {
  std::vector<StreamItem> items;
  for (const TimelineControl& control : std::exchange(controls_, {})) {
    items.push_back({.kind = control.start ? StreamKind::kTimelineStart : StreamKind::kTimelineStop,
                     .flag = control.mark_cycles});
  }
  const std::vector<int32_t> joins = std::exchange(joins_, {});
  // A rank that has joined and departed has ended the join of the others.
  if (!joins.empty() && joined_count_ == joined_.size() && departed_count_ == departures_.size()) {
    items.push_back({.kind = StreamKind::kAllJoined, .rank = joins.back()});
  }
  const bool finishes = !departures_.empty() && departed_count_ == departed_.size();
  for (Departure& departure : std::exchange(departures_, {})) {
    items.push_back({.kind = StreamKind::kDeparted,
                     .text = std::move(departure.reason),
                     .rank = departure.rank});
  }
  if (finishes) items.emplace_back().kind = StreamKind::kFinished;
  return items;
}

Farewells::Farewells(int32_t parent, int32_t size, std::vector<std::string> hosts,
                     std::vector<int64_t> pids)
    : parent_(parent),
      hosts_(std::move(hosts)),
      pids_(std::move(pids)),
      losses_(static_cast<size_t>(size)) {}

void Farewells::Take(int32_t source, const Farewell& farewell) {
  if (HasLeft(source)) return;
  Status& loss = losses_[static_cast<size_t>(source)];
  loss = PeerHasLeft(source, RankText(source, hosts_, pids_), farewell.why,
                     static_cast<int>(losses_.size()));
  if (!loss_.ok() || (source != parent_ && farewell.is_told)) return;
  loss_ = loss;
  is_loss_told_ = farewell.is_told;
}

}  // namespace mydist
