// Membership: which ranks have joined or left, and what else concerns the whole job rather than a
// process set: starting and stopping the timeline. Pure. Owned by the Coordinator of one vertex.
// News go up at once. The root tells everybody when a rank leaves, when all have left, and when all
// have joined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "controller/messages/report.h"
#include "controller/messages/response.h"

namespace mydist {

class Membership {
 public:
  explicit Membership(int32_t size)
      : departed_(static_cast<size_t>(size)), joined_(static_cast<size_t>(size)) {}

  // A rank of this subtree has nothing to contribute until all have joined. kInternal for an
  // unknown rank or one that has joined already.
  Status Join(int32_t rank);

  // A rank of this subtree leaves; a second time changes nothing. kInternal for an unknown rank.
  Status Depart(Departure departure);
  void Control(TimelineControl control) { controls_.push_back(control); }
  // What a child reports.
  Status TakeReport(const Report& report);

  bool HasDeparted(int32_t rank) const { return departed_[static_cast<size_t>(rank)]; }
  bool HasJoined(int32_t rank) const { return joined_[static_cast<size_t>(rank)]; }
  // Whether a rank of the subtree has left, or joined and is not back.
  bool IsSomebodyAway() const { return departed_count_ > 0 || joined_count_ > 0; }
  bool HasNews() const { return !departures_.empty() || !controls_.empty() || !joins_.empty(); }
  // Not the root: moves the news into the report.
  void FillReport(Report& report);
  // Root: the items that follow from the news.
  std::vector<StreamItem> Decide();
  // The stream says that all have joined: no rank counts as joined any more.
  void ResetJoined();

 private:
  Status CheckRank(int32_t rank, const char* what) const;

  std::vector<bool> departed_;  // By rank.
  size_t departed_count_ = 0;
  std::vector<bool> joined_;  // By rank, of the subtree.
  size_t joined_count_ = 0;
  std::vector<int32_t> joins_;             // Not yet told.
  std::vector<Departure> departures_;      // Not yet told.
  std::vector<TimelineControl> controls_;  // Not yet told.
};

// Farewell: what a rank that stops with an error tells all others, and what follows from it for one
// of them. Pure. Farewells is owned by the Coordinator and read by its FrozenMode.
// A rank that ends in order says none. A farewell comes after everything else that its rank has
// sent and cast: what that rank has decided stands.
struct Farewell {
  // The root tells all ranks that still have the stream. Else this is a loss of theirs.
  bool is_told = false;
  std::string why;  // As FarewellWords.
  // The progress of the rank, and of the ranks that it blames.
  std::vector<RankProgress> progress{};
};

class Farewells {
 public:
  // `parent`: the rank that this rank has the stream from; -1: the root. `hosts` and `pids`: of
  // each rank, or empty.
  Farewells(int32_t parent, int32_t size, std::vector<std::string> hosts,
            std::vector<int64_t> pids = {});

  // Of rank `source`; a second one changes nothing.
  void Take(int32_t source, const Farewell& farewell);

  bool HasLeft(int32_t rank) const { return !LossOf(rank).ok(); }
  // kPeerLost, naming it, or the rank because of which it left, and what went wrong first; OK while
  // it has not left.
  const Status& LossOf(int32_t rank) const { return losses_[static_cast<size_t>(rank)]; }
  // The first of those after which this rank waits for something that will not come: its parent's,
  // or one that the stream does not tell of.
  const Status& loss() const { return loss_; }
  // Whether that one is told of in the stream.
  bool is_loss_told() const { return is_loss_told_; }

 private:
  const int32_t parent_;
  const std::vector<std::string> hosts_;
  const std::vector<int64_t> pids_;
  std::vector<Status> losses_;  // By rank.
  Status loss_;
  bool is_loss_told_ = false;
};

}  // namespace mydist
