// FaultNetwork: connections of simulated ranks, which delay, break, and where a test wants it break
// their promise. In memory, one thread; only the simulation moves messages and the clock.
// What a ControlPlane promises holds unless a breach is injected: messages of a pair arrive
// complete, once and in order, or the connection ends, and then nothing follows.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/control_plane.h"
#include "transport/vote_board.h"

namespace mydist {

// What a test breaks to see that the invariants notice it.
enum class Sabotage {
  kNone,
  kLoseFarewells,   // No farewell of a rank arrives.
  kHideLosses,      // No broken connection is reported.
  kBlameMessenger,  // Farewells name no other rank.
  kLoseAnswers,     // Ranks that are asked seem to be silent.
  kForgeVotes,      // A rank reads READY where another has not voted.
  kForgeReports,    // A rank reports everything twice.
  kSwapItems,       // One rank gets two decisions in another order.
  kAnswerTwice,     // One rank is handed a batch twice.
  kLoseBatches,     // One rank is not handed a batch.
};

class FaultNetwork;

class FaultPlane : public ControlPlane {
 public:
  FaultPlane(FaultNetwork* network, int rank) : network_(network), rank_(rank) {}
  Status Send(int peer, Bytes payload) override;
  Result<std::optional<IncomingMessage>> Receive() override;
  void Await(TimePoint) override {}
  void Wake() override {}
  void Attend(bool) override {}
  Status Close(TimePoint) override { return Status::Ok(); }

  int64_t sent_count = 0;
  int64_t taken_count = 0;

 private:
  friend class FaultNetwork;
  FaultNetwork* const network_;
  const int rank_;
  // A message, or the loss of its source.
  struct News {
    IncomingMessage message;
    Status loss;
  };
  std::deque<News> inbox_;
  std::map<int, Status> ended_;  // By peer: what a send to it returns.
};

class FaultBoard : public VoteBoard {
 public:
  FaultBoard(FaultNetwork* network, int rank) : network_(network), rank_(rank) {}
  void Cast(Voice voice, const VoteWord& word, std::span<const int32_t> members) override;
  VoteWord Read(Voice voice, int32_t rank) const override;

 private:
  FaultNetwork* const network_;
  const int rank_;
};

class FaultNetwork {
 public:
  // `hosts`: of each rank; empty: all on one. `wake`: a rank has news.
  FaultNetwork(int size, std::vector<int> hosts, uint32_t seed, Sabotage sabotage,
               std::function<void(int)> wake);

  FaultPlane& plane(int rank) { return *planes_[static_cast<size_t>(rank)]; }
  FaultBoard& board(int rank) { return *boards_[static_cast<size_t>(rank)]; }
  std::mt19937& random() { return random_; }

  // Something may be delivered now; DeliverOne does so from a random pair.
  bool IsBusy() const { return !busy_.empty(); }
  size_t busy_count() const { return busy_.size(); }
  void DeliverOne();
  void SetTime(TimePoint now);
  TimePoint now() const { return now_; }
  // When time makes something deliverable; kNever: it does not.
  TimePoint NextRelease() const;

  void Delay(int source, int target, Duration duration);
  // It dies after so many more messages and votes; what was under way may be lost with it.
  void CrashAfter(int rank, int sends);
  bool HasCrashed(int rank) const { return crashed_[static_cast<size_t>(rank)]; }
  // The connection breaks, and the ends notice it after `here` and `there`.
  void Cut(int a, int b, Duration here, Duration there);
  // The rank ends in order, with these words.
  void Close(int rank, const std::string& words);
  // False where too little is under way. These break the promise.
  bool Repeat(int source, int target);
  bool Swap(int source, int target);
  bool Drop(int source, int target);

  // The first thing that must never happen; empty: none has.
  const std::string& violation() const { return violation_; }
  // Called for each delivery with a description, where set.
  std::function<void(const std::string&)> trace;

 private:
  friend class FaultPlane;
  friend class FaultBoard;
  using Pair = std::pair<int, int>;
  struct Wire {
    std::deque<Bytes> messages;
    std::optional<Status> end;  // OK: in order.
    Status after_end;           // What sends to the source return then.
    bool swallows = false;      // What is sent goes nowhere.
    bool is_over = false;       // The end has been delivered.
    TimePoint release = kPast;
    bool is_busy = false;
  };

  Wire& WireOf(Pair pair) { return wires_[static_cast<size_t>(pair.first * size_ + pair.second)]; }
  void Refresh(Pair pair);
  void Count(int rank);
  void Crash(int rank);
  void End(int source, int target, Status end, Status after, Duration after_time, bool loses);
  bool ShareBoard(int a, int b) const {
    return hosts_.empty() || hosts_[static_cast<size_t>(a)] == hosts_[static_cast<size_t>(b)];
  }
  void Fail(const std::string& what);
  // What becomes of a message that is sabotaged; nothing: it is lost.
  std::optional<Bytes> Spoil(Pair pair, Bytes payload);

  const int size_;
  const std::vector<int> hosts_;
  std::mt19937 random_;
  const Sabotage sabotage_;
  const std::function<void(int)> wake_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  std::vector<std::unique_ptr<FaultPlane>> planes_;
  std::vector<std::unique_ptr<FaultBoard>> boards_;
  std::vector<Wire> wires_;
  std::vector<Pair> busy_;
  std::vector<bool> crashed_;
  std::vector<int> sends_left_;  // By rank; -1: lives on.
  std::vector<std::array<VoteWord, 3>> words_;
  uint32_t forged_count_ = 0;
  std::string violation_;
};

}  // namespace mydist
