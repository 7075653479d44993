// What errors of a GroupLane tell: the operation, the ranks, and how far each has come.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/process.h"
#include "lanes/group_lane.h"
#include "world/process_set.h"

namespace mydist {
namespace {

// Ranks of a group that an error gives as ranks of the program, too.
constexpr size_t kMostTranslated = 4;

}  // namespace

void GroupLane::NoteFailure(const Status& status, std::string_view operation,
                            const std::string& which) {
  if (status.code() == StatusCode::kAborted) return;  // Its cause has been noted.
  Failure known = status.failure();
  for (int& rank : known.ranks) rank = WorldRank(rank);
  if (known.progress != nullptr) {
    std::vector<RankProgress> progress = *known.progress;
    for (RankProgress& one : progress) one.rank = WorldRank(one.rank);
    known.progress = std::make_shared<const std::vector<RankProgress>>(std::move(progress));
  }
  known.operation = operation;
  known.tensor = "group " + name_ + (which.empty() ? "" : ", " + which);
  journal_->Failed(Status(status.code(), status.message()).About(known));
}

Status GroupLane::WithProgress(const Status& error) const {
  auto progress = std::make_shared<const std::vector<RankProgress>>(news_.All(Now()));
  return error.About({.progress = std::move(progress)});
}

bool GroupLane::IsOwn(const Status& error) const {
  return !error.is_consequence() || error.cause().starts_with(ground_->Name());
}

Status GroupLane::Told(const Status& error) const {
  // The rank to blame is known to have died, or this one has heard of it from another.
  const bool is_known = !error.failure().ranks.empty() && error.code() != StatusCode::kTimeout;
  if (error.ok() || is_known || error.is_consequence()) return error;
  return error.About(
      {.ranks = {rank()}, .cause = ground_->Name() + " gave up: " + error.message()});
}

std::string GroupLane::WorldNote(std::span<const int> peers) const {
  std::string note;
  for (const int peer : peers.first(std::min<size_t>(peers.size(), kMostTranslated))) {
    if (peer < 0 || peer >= size() || WorldRank(peer) == peer) continue;
    note += (note.empty() ? "In the program, rank " : ", rank ") + std::to_string(peer) +
            " of the group is rank " + std::to_string(WorldRank(peer));
  }
  return note.empty() ? "" : note + ".";
}

GroupLane::Peers GroupLane::Describe(std::span<const int> peers) const {
  const Topology& topology = ground_->topology;
  Peers found{RankListText(peers) + HostListText(peers, topology.hosts, topology.pids), ""};
  if (peers.size() == 1) found.state = ProcessStateText(topology.SeenPid(peers[0]));
  return found;
}

std::string GroupLane::WithinText(std::span<const int> peers, const Peers& whom,
                                  Duration waited) const {
  const std::string note = WorldNote(peers);
  return " within " + SecondsText(waited) + (whom.state.empty() ? "." : ": " + whom.state) +
         (note.empty() ? "" : " " + note);
}

std::string GroupLane::WaitText(std::span<const int> peers, Duration waited) const {
  const Peers whom = peers.empty() ? Peers{"other ranks", ""} : Describe(peers);
  return Title(*current_) + ": " + whom.names + " did not take part" +
         WithinText(peers, whom, waited);
}

std::string GroupLane::MessageText(int source, int tag, Duration waited) const {
  const bool is_any = source == LanePosts::kAnySource;
  const std::span<const int> peers(&source, is_any ? 0U : 1U);
  const Peers whom = is_any ? Peers{"any rank", ""} : Describe(peers);
  return "group '" + name_ + "': no message from " + whom.names + " with tag " +
         std::to_string(tag) + " came" + WithinText(peers, whom, waited);
}

Status GroupLane::MessageTimeout(int source, int tag, Duration limit) const {
  Failure known{.elapsed = ToSeconds(limit)};
  if (source != LanePosts::kAnySource) known.ranks = {source};
  return Status::Timeout(MessageText(source, tag, limit)).About(known);
}

std::string GroupLane::Title(const LaneWork& work) const {
  return "group '" + name_ + "', operation " + std::to_string(work.sequence_) + ", " +
         work.call_.ToText();
}

Status GroupLane::Described(const LaneWork& work, const Status& error) {
  if (error.message().starts_with("group '")) return error;
  Status described = error;
  const Failure& known = error.failure();
  if (error.code() == StatusCode::kPeerLost && !error.is_consequence() && known.signal == 0) {
    const std::optional<int> rank = ends_.AwaitOne(known.ranks);
    const std::optional<ProcessEnd> end = rank ? ends_.Find(*rank) : std::nullopt;
    if (end && ends_.IsCause(*end)) {
      described = Status(error.code(), error.message())
                      .WithSentence(EndText(*end, *rank))
                      .About({.ranks = {*rank}, .signal = end->number, .finding = kDeadFinding})
                      .About(known);
    }
  }
  return described.WithSentence(WorldNote(known.ranks)).WithContext(Title(work));
}

}  // namespace mydist
