// GroupMeeting: how the members of a process group find each other in torch's store, in which each
// member puts its bytes under a key of its own and reads those of the others. Used by one thread.
//
// Keys of former meetings stay in the store: a group may be destroyed and made again under the same
// prefix, and a start may fail. So each member counts its attempts in the store, and a meeting has
// the number of the attempt. When a start has failed on some members only, these come again with a
// later number. They mark what they did not write before: the others, which wait for that, follow.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/clock.h"
#include "base/status.h"
#include "transport/factory.h"

namespace mydist {

class GroupMeeting {
 public:
  // `store` has a prefix of the group's own.
  GroupMeeting(c10::intrusive_ptr<c10d::Store> store, int rank, int size);

  // Begins an attempt: the next one, or the latest that another member has begun. The errors of the
  // store become kInternal, here as in Round.
  Status Begin();
  // One round of the attempt. kAborted when another member has begun a later one.
  Result<std::vector<Bytes>> Round(const Bytes& mine);
  // Whether another member has begun a later attempt, and time is left for it.
  bool IsOvertaken();

 private:
  std::string BegunKey(int rank) const { return group_ + "begun/" + std::to_string(rank); }
  // Of a member, in a round of an attempt.
  std::string Key(int64_t attempt, int round, int rank) const;
  // The latest attempt of the other members.
  int64_t LatestOfOthers();
  // Marks what this member has not written in earlier attempts.
  void LeaveAttempts(int64_t first, int64_t end);
  // The bytes of another member in this round.
  Bytes BytesOf(int other);
  // What to do when they have not come.
  std::string Advice(int other);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  const std::string group_;  // Groups of several sizes may share a prefix.
  const TimePoint deadline_;
  int64_t attempt_ = 0;
  int round_ = 0;
};

}  // namespace mydist
