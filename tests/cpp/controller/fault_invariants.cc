#include "controller/fault_invariants.h"

#include <algorithm>

#include "controller/tree.h"

namespace mydist {
namespace {

// A rank that submits a tensor later than this before the others give up may cross their error.
constexpr Duration kInTime = std::chrono::seconds(5);

}  // namespace

FaultInvariants::FaultInvariants(const FaultProgram& program)
    : program_(program), ranks_(static_cast<size_t>(program.size)), log_sets_(program.sets) {
  for (int tensor = 0; tensor < program.step_tensors; ++tensor) {
    log_sets_.push_back(program.MembersOf(tensor));
  }
}

int FaultInvariants::LogOf(int tensor) const {
  const FaultTensor& of = program_.tensors[static_cast<size_t>(tensor)];
  return of.ranks.empty() ? of.set : static_cast<int>(program_.sets.size()) + tensor;
}

void FaultInvariants::Fail(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

std::string FaultInvariants::Name(int rank, int tensor) const {
  return program_.tensors[static_cast<size_t>(tensor)].name + " on rank " + std::to_string(rank);
}

void FaultInvariants::Submitted(int rank, int tensor, int turn, TimePoint now) {
  ranks_[static_cast<size_t>(rank)].in_flight[tensor] = {turn, now};
}

void FaultInvariants::Returned(int rank) {
  Rank& entry = ranks_[static_cast<size_t>(rank)];
  if (!entry.has_joined) Fail("rank " + std::to_string(rank) + " is back and had not joined");
  entry.has_joined = false;
}

void FaultInvariants::Ready(int rank, int tensor, const Agreement& agreement, int place) {
  Rank& entry = ranks_[static_cast<size_t>(rank)];
  if (entry.has_departed) Fail(Name(rank, tensor) + " is ready after a rank has left");
  const FaultTensor& of = program_.tensors[static_cast<size_t>(tensor)];
  const auto own = entry.in_flight.find(tensor);
  if (own == entry.in_flight.end() && !entry.has_joined) {
    Fail(Name(rank, tensor) + " is ready and was not submitted, or is ready twice");
  }
  const int set = LogOf(tensor);
  const bool is_first = entry.log_places[{set, set}] == logs_[{set, set}].size();
  int turn = own == entry.in_flight.end() ? -1 : own->second.turn;
  for (const int member : program_.MembersOf(tensor)) {
    if (!is_first) break;
    const Rank& other = ranks_[static_cast<size_t>(member)];
    const auto theirs = other.in_flight.find(tensor);
    if (theirs == other.in_flight.end()) {
      if (!other.has_joined) {
        Fail(Name(rank, tensor) + " is ready without rank " + std::to_string(member));
      }
      continue;
    }
    if (turn < 0) turn = theirs->second.turn;
    if (turn != theirs->second.turn) {
      Fail(Name(rank, tensor) + " is ready with another turn of rank " + std::to_string(member));
    }
  }
  if (turn >= 0 && !program_.Agrees(tensor, turn)) {
    Fail(Name(rank, tensor) + " is ready though the ranks asked for different things");
  }
  std::string what = of.name + " #" + std::to_string(place);
  for (const int64_t rows : agreement.first_dims) what += " " + std::to_string(rows);
  Log(rank, set, what);
  if (own != entry.in_flight.end()) entry.in_flight.erase(own);
}

void FaultInvariants::Failed(int rank, int tensor, const Status& error) {
  Rank& entry = ranks_[static_cast<size_t>(rank)];
  const auto own = entry.in_flight.find(tensor);
  if (own == entry.in_flight.end()) {
    return Fail(Name(rank, tensor) + " fails and is not in flight: " + error.ToString());
  }
  if (error.code() == StatusCode::kMismatch && program_.Agrees(tensor, own->second.turn)) {
    Fail(Name(rank, tensor) + " is refused though all ask for the same: " + error.message());
  }
  entry.in_flight.erase(own);
}

void FaultInvariants::Told(int rank, const std::string& what) { Log(rank, 0, what); }

// Each rank must see, of the sets that it shares with others, what they see, in their order.
void FaultInvariants::Log(int rank, int set, const std::string& what) {
  Rank& entry = ranks_[static_cast<size_t>(rank)];
  for (int other = 0; other < static_cast<int>(log_sets_.size()); ++other) {
    const std::vector<int>& ranks = log_sets_[static_cast<size_t>(other)];
    if (!std::binary_search(ranks.begin(), ranks.end(), rank)) continue;
    const std::pair<int, int> both = std::minmax(set, other);
    std::vector<std::string>& log = logs_[both];
    size_t& place = entry.log_places[both];
    if (place == log.size()) {
      log.push_back(what);
    } else if (log[place] != what) {
      Fail("rank " + std::to_string(rank) + " is told '" + what + "' where others were told '" +
           log[place] + "'");
    }
    ++place;
  }
}

void FaultInvariants::CheckBlame(int rank, const Status& error, TimePoint now) {
  const std::vector<int>& named = error.failure().ranks;
  const bool is_right =
      !named.empty() && !culprits_.empty() &&
      std::all_of(named.begin(), named.end(), [&](int who) { return MayBlame(error, who, now); });
  if (is_right) return;
  Fail("rank " + std::to_string(rank) +
       " blames a rank that did nothing wrong: " + error.ToString());
}

bool FaultInvariants::MayBlame(const Status& error, int blamed, TimePoint now) const {
  if (culprits_.contains(blamed)) return true;
  if (error.code() == StatusCode::kAborted) return followers_.contains(blamed);
  if (error.code() != StatusCode::kTimeout) return false;
  if (slow_.contains(blamed)) return true;
  // Only of ranks that give no answer does a time-out say more than that they are not there.
  const bool says_silent = error.message().find("no answer") != std::string::npos;
  if (says_silent) return now - woke_at_ < std::chrono::seconds(1);
  return IsHidden(blamed) || held_.contains(blamed) ||
         !HasSubmitted(blamed, error.failure().tensor, now - kInTime);
}

// Whether what it says goes through a culprit.
bool FaultInvariants::IsHidden(int rank) const {
  while (rank >= 0) {
    if (culprits_.contains(rank)) return true;
    rank = MakeVertex(rank, program_.size, program_.radix, program_.HostNames()).parent;
  }
  return false;
}

bool FaultInvariants::HasSubmitted(int rank, const std::string& tensor, TimePoint before) const {
  for (const auto& [number, call] : ranks_[static_cast<size_t>(rank)].in_flight) {
    if (program_.tensors[static_cast<size_t>(number)].name == tensor && call.since < before) {
      return true;
    }
  }
  return false;
}

}  // namespace mydist
