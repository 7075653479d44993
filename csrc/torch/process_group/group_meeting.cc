#include "torch/process_group/group_meeting.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace mydist {
namespace {

// In front of the bytes of a member; the other one: there are none, as it has begun a later
// attempt.
constexpr uint8_t kHere = 1;
constexpr uint8_t kLeft = 0;
// A start has fewer: one for the greeting, five for memory, and those of a transport.
constexpr int kMostRounds = 16;

// What is said of another member that is ahead.
class Overtaken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Behind the first line is where torch raised it.
std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

template <typename Call>
Status WithStatus(const Call& call) {
  try {
    call();
  } catch (const Overtaken& error) {
    return Status::Aborted(error.what());
  } catch (const std::exception& error) {
    return Status::Internal("the start of a group: " + FirstLine(error.what()));
  }
  return Status::Ok();
}

}  // namespace

GroupMeeting::GroupMeeting(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      group_("mydist/" + std::to_string(size) + "/"),
      deadline_(Now() + store_->getTimeout()) {}

std::string GroupMeeting::Key(int64_t attempt, int round, int rank) const {
  return group_ + std::to_string(attempt) + "/" + std::to_string(round) + "/" +
         std::to_string(rank);
}

Status GroupMeeting::Begin() {
  return WithStatus([this] {
    const bool is_first = attempt_ == 0;
    const int64_t before = store_->add(BegunKey(rank_), 0);
    attempt_ = is_first ? before + 1 : std::max(before + 1, LatestOfOthers());
    round_ = 0;
    store_->add(BegunKey(rank_), attempt_ - before);
    LeaveAttempts(std::max<int64_t>(before, 1), attempt_);
  });
}

void GroupMeeting::LeaveAttempts(int64_t first, int64_t end) {
  for (int64_t attempt = first; attempt < end; ++attempt) {
    for (int round = 0; round < kMostRounds; ++round) {
      store_->compareSet(Key(attempt, round, rank_), Bytes(), Bytes{kLeft});
    }
  }
}

Result<std::vector<Bytes>> GroupMeeting::Round(const Bytes& mine) {
  std::vector<Bytes> all;
  MYDIST_RETURN_IF_ERROR(WithStatus([&] {
    Bytes marked(1 + mine.size(), kHere);
    std::copy(mine.begin(), mine.end(), marked.begin() + 1);
    store_->set(Key(attempt_, round_, rank_), marked);
    for (int other = 0; other < size_; ++other) {
      all.push_back(other == rank_ ? mine : BytesOf(other));
    }
    ++round_;
  }));
  return all;
}

Bytes GroupMeeting::BytesOf(int other) {
  Bytes marked;
  try {
    marked = store_->get(Key(attempt_, round_, other));
  } catch (const std::exception& error) {
    throw std::runtime_error("the store has nothing of rank " + std::to_string(other) +
                             " of the group" + Advice(other) +
                             " The store says: " + FirstLine(error.what()));
  }
  if (marked.empty() || marked.front() != kHere) {
    throw Overtaken("rank " + std::to_string(other) + " of the group has left attempt " +
                    std::to_string(attempt_) + " of its start and begun a later one");
  }
  return {marked.begin() + 1, marked.end()};
}

std::string GroupMeeting::Advice(int other) {
  int64_t theirs = 0;
  const Status asked = WithStatus([&] { theirs = store_->add(BegunKey(other), 0); });
  if (!asked.ok()) return ".";
  if (theirs == 0) {
    return ", which has not begun. Is that process alive, and does it start the same group?";
  }
  if (theirs < attempt_) {
    return " for attempt " + std::to_string(attempt_) + "; that rank has begun " +
           std::to_string(theirs) +
           ". Where some ranks start a group again, all have to: destroy it on the others, too.";
  }
  return ", which has begun. See its output.";
}

bool GroupMeeting::IsOvertaken() {
  bool is_overtaken = false;
  const Status asked = WithStatus([&] { is_overtaken = LatestOfOthers() > attempt_; });
  return asked.ok() && is_overtaken && Now() < deadline_;
}

int64_t GroupMeeting::LatestOfOthers() {
  int64_t latest = 0;
  for (int other = 0; other < size_; ++other) {
    if (other != rank_) latest = std::max(latest, store_->add(BegunKey(other), 0));
  }
  return latest;
}

}  // namespace mydist
