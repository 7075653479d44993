// FaultRank: one rank of a fault simulation: its program, its Coordinator and the StallGuard that
// ends its waits, driven as the engine drives them. A collective takes no time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "controller/coordinator.h"
#include "controller/fault_invariants.h"
#include "controller/fault_network.h"
#include "controller/fault_program.h"
#include "engine/stall_guard.h"

namespace mydist {

inline constexpr Duration kFaultWarning = std::chrono::seconds(10);
inline constexpr Duration kFaultShutdown = std::chrono::seconds(20);

class FaultRank {
 public:
  // `repeats`, `forgets`: sabotage, of a batch that it is handed.
  FaultRank(const FaultProgram& program, int rank, FaultNetwork* network,
            FaultInvariants* invariants, bool repeats, bool forgets);

  // Does one thing of its program, or none, and then what the engine does in a cycle. Whether it
  // has more to do.
  bool Turn(bool may_depart);
  void Sleep(Duration duration);
  // Something of its own goes wrong, and its engine ends.
  void Fail(const Status& status);
  // It departs, whatever it has in flight.
  void LeaveEarly(const std::string& why);

  int rank() const { return rank_; }
  Coordinator& coordinator() { return coordinator_; }
  TimePoint asleep_until() const { return asleep_until_; }
  // When it has something to do even without news: it wakes up, or a deadline passes.
  TimePoint NextDeadline();
  bool IsDue() { return NextDeadline() <= network_->now(); }
  bool has_stopped() const { return has_stopped_; }
  bool has_finished() const { return has_finished_; }
  bool has_left_early() const { return has_left_early_; }
  // With an answer to every call.
  bool IsComplete() const { return next_ == calls_.size() && since_.empty() && !is_in_call(); }
  // Since when the oldest thing waits that its program waits for; kNever: none does.
  TimePoint WaitsSince() const;
  // What its program was told that is not its own fault.
  const std::vector<Status>& errors() const { return errors_; }
  bool HasNewErrors() const { return checked_errors_ < errors_.size(); }
  // Those that came since the last call.
  void CheckErrors();
  int64_t submitted_count() const { return submitted_count_; }
  std::string Text() const;

  std::function<void(int, const std::string&)> trace;

 private:
  bool is_in_call() const { return is_joining_ || is_switching_; }
  bool Act(bool may_depart);
  bool Submit(const FaultCall& call);
  Status Cycle(bool* has_more);
  void Stop(const Status& status);
  void Leave(const std::string& why);
  Status FollowStall();
  void Take(const std::vector<Response>& batch);
  void TakeOne(const Response& response, std::map<int, int>& places);
  void TakeReady(const Response& response, std::map<int, int>& places);
  void TakeDeparture(const Response& response);
  int TensorNamed(const std::string& name) const;
  void Trace(const std::string& what) const {
    if (trace) trace(rank_, what);
  }

  const FaultProgram& program_;
  const std::vector<FaultCall>& calls_;
  const int rank_;
  FaultNetwork* const network_;
  FaultInvariants* const invariants_;
  bool repeats_;
  bool forgets_;
  Topology topology_;
  Coordinator coordinator_;
  StallGuard guard_;
  std::vector<ProcessSetId> ids_;  // By set of the program; -1: there is none.

  size_t next_ = 0;
  bool waits_for_all_ = false;
  std::map<int, TimePoint> since_;   // In flight, by tensor.
  std::map<int, Request> requests_;  // The same.
  bool is_joining_ = false;
  bool is_switching_ = false;  // The timeline.
  TimePoint called_at_;
  bool has_left_ = false;
  bool has_left_early_ = false;
  bool somebody_left_ = false;
  bool has_finished_ = false;
  bool has_stopped_ = false;
  TimePoint asleep_until_ = kPast;  // kPast: it is awake.
  TimePoint awake_since_ = kPast;
  Status overdue_;
  std::vector<Status> errors_;
  size_t checked_errors_ = 0;
  int64_t submitted_count_ = 0;
};

}  // namespace mydist
