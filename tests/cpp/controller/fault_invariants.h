// FaultInvariants: what must hold in a simulated job at every step, whatever goes wrong. It sees
// what programs submit and what they are told, and keeps the first violation.
// Pure. Used by the fault simulation: docs/decisions/0023-simulated-faults.md.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "controller/fault_program.h"
#include "controller/messages/response.h"

namespace mydist {

class FaultInvariants {
 public:
  explicit FaultInvariants(const FaultProgram& program);

  void Submitted(int rank, int tensor, int turn, TimePoint now);
  // It announces nothing more until Returned.
  void Joined(int rank) { ranks_[static_cast<size_t>(rank)].has_joined = true; }
  void Returned(int rank);
  // `place`: among the ready tensors of its set in the batch.
  void Ready(int rank, int tensor, const Agreement& agreement, int place);
  // The call ends with an error.
  void Failed(int rank, int tensor, const Status& error);
  // Something of the whole job, at this point of the stream: every rank is told.
  void Told(int rank, const std::string& what);
  // Nothing becomes ready on this rank any more.
  void Departed(int rank) { ranks_[static_cast<size_t>(rank)].has_departed = true; }

  // A fault for which this rank may be blamed has happened.
  void Blame(int rank) { culprits_.insert(rank); }
  bool IsCulprit(int rank) const { return culprits_.contains(rank); }
  const std::set<int>& culprits() const { return culprits_; }
  // A vote or a silent vertex keeps what it has submitted from the root.
  void Held(int rank) { held_.insert(rank); }
  // An exception ends its program, after an error that it was told: who only hears that it left
  // blames it.
  void Follow(int rank) { followers_.insert(rank); }
  // What this rank is asked may be answered late.
  void Slow(int rank) { slow_.insert(rank); }
  // A rank goes on: its answers lead to questions that others have no time to answer.
  void Woke(TimePoint now) { woke_at_ = now; }
  // An error that is no mismatch: it must name ranks, and none that did nothing wrong.
  void CheckBlame(int rank, const Status& error, TimePoint now);

  bool IsInFlight(int rank, int tensor) const {
    return ranks_[static_cast<size_t>(rank)].in_flight.contains(tensor);
  }
  void Fail(const std::string& what);
  const std::string& violation() const { return violation_; }

 private:
  struct Call {
    int turn = 0;
    TimePoint since;
  };
  struct Rank {
    std::map<int, Call> in_flight;                     // By tensor.
    std::map<std::pair<int, int>, size_t> log_places;  // By pair of sets, as logs_.
    bool has_joined = false;
    bool has_departed = false;
  };
  // Sets as those of the program, and behind them one for each send/recv.
  int LogOf(int tensor) const;
  void Log(int rank, int set, const std::string& what);
  bool MayBlame(const Status& error, int blamed, TimePoint now) const;
  bool IsHidden(int rank) const;
  bool HasSubmitted(int rank, const std::string& tensor, TimePoint before) const;
  std::string Name(int rank, int tensor) const;

  const FaultProgram& program_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<int>> log_sets_;
  // What the ranks that are in both sets (or in one, twice) are told of these sets, in order.
  std::map<std::pair<int, int>, std::vector<std::string>> logs_;
  std::set<int> culprits_;
  std::set<int> followers_;
  std::set<int> slow_;
  std::set<int> held_;
  TimePoint woke_at_ = TimePoint();
  std::string violation_;
};

}  // namespace mydist
