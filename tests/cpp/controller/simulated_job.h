// SimulatedJob: all ranks of a job in one thread, each with its real Coordinator, over a network in
// memory that delivers only when told to, pair by pair, in an order drawn from a seed.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "controller/coordinator.h"

namespace mydist {

class SimulatedJob;

// The control plane of one simulated rank.
class SimulatedPlane : public ControlPlane {
 public:
  SimulatedPlane(SimulatedJob* job, int rank) : job_(job), rank_(rank) {}
  Status Send(int peer, Bytes payload) override;
  Result<std::optional<IncomingMessage>> Receive() override;
  void Await(TimePoint) override {}
  void Wake() override {}
  void Attend(bool) override {}
  Status Close(TimePoint) override { return Status::Ok(); }

  std::deque<IncomingMessage> inbox;
  Status loss;               // Returned once, when the inbox is empty.
  std::set<int> lost_peers;  // Nothing can be sent to them.

 private:
  SimulatedJob* job_;
  int rank_;
};

// Where one simulated rank votes and reads votes of its host.
class SimulatedBoard : public VoteBoard {
 public:
  SimulatedBoard(SimulatedJob* job, int rank) : job_(job), rank_(rank) {}
  void Cast(Voice voice, const VoteWord& word, std::span<const int32_t> members) override;
  VoteWord Read(Voice voice, int32_t rank) const override;

 private:
  SimulatedJob* job_;
  int rank_;
};

using Batch = std::vector<Response>;

class SimulatedJob {
 public:
  struct Options {
    int size = 2;
    int radix = 2;
    int64_t cache_capacity = 16;
    int64_t freeze_after = 0;
    Duration stall_warning = Duration::zero();
    Duration stall_shutdown = Duration::zero();
    VoteLimits vote_limits{};
    bool names_hosts = false;  // Rank r runs on host "h<r>".
    std::vector<int> hosts{};  // Rank r runs on host "h<hosts[r]>", with a board of its own.
    uint32_t seed = 1;
  };

  explicit SimulatedJob(Options options);

  int size() const { return options_.size; }
  Coordinator& coordinator(int rank) { return *ranks_[static_cast<size_t>(rank)].coordinator; }
  SimulatedPlane& plane(int rank) { return *ranks_[static_cast<size_t>(rank)].plane; }
  std::mt19937& random() { return random_; }

  void Announce(int rank, std::vector<Request> requests);
  void Announce(int rank, Request request) { Announce(rank, std::vector<Request>{request}); }
  void AnnounceAll(const Request& request) {
    for (int rank = 0; rank < size(); ++rank) Announce(rank, request);
  }
  void Depart(int rank, const std::string& reason);
  void Join(int rank);
  // It does and hears nothing any more, and those connected to it notice.
  void Crash(int rank);
  // It stops with this error, and is still driven.
  void Leave(int rank, const Status& why);
  // Its engine stops with this error, while its process lives on: what it has said before arrives,
  // it does and hears nothing any more, and only who has something to send to it notices.
  void Fail(int rank, const Status& why);
  // Either of the two.
  bool HasCrashed(int rank) const { return ranks_[static_cast<size_t>(rank)].has_crashed; }
  // Why a rank's engine has stopped; OK while it has not, and of one that crashed.
  const Status& outcome(int rank) const { return ranks_[static_cast<size_t>(rank)].outcome; }
  // What this pair has to say to each other stays under way until Release.
  void Hold(int source, int target) { held_ = {source, target}; }
  void Release();
  // Gives every rank a turn, as when a deadline may have passed.
  void MarkAllDue();
  void MarkDue(int rank);

  // One cycle of a rank; what it returns is appended to batches(rank). The rank has another turn
  // to come until it could only wait.
  Status Step(int rank);
  // Hands over the oldest message of a random pair; false when none is under way.
  bool DeliverOne();
  // One random delivery or cycle; false when nothing is left to do.
  bool Progress();
  // Until nothing is under way and nobody has anything to do.
  void RunUntilQuiet();

  const std::vector<Batch>& batches(int rank) const {
    return ranks_[static_cast<size_t>(rank)].batches;
  }
  // All responses of a rank as text, one per element, boundaries of batches as "|".
  std::vector<std::string> Log(int rank) const;
  // The messages of kError and kStall responses of a rank.
  std::vector<std::string> Errors(int rank) const;
  std::vector<std::string> Stalls(int rank) const;
  uint64_t MessagesSent() const;

  TimePoint now = TimePoint() + std::chrono::hours(1);

 private:
  friend class SimulatedPlane;
  friend class SimulatedBoard;
  bool ShareBoard(int a, int b) const {
    const std::vector<int>& hosts = options_.hosts;
    return hosts.empty() || hosts[static_cast<size_t>(a)] == hosts[static_cast<size_t>(b)];
  }

  struct Rank {
    std::unique_ptr<SimulatedPlane> plane;
    std::unique_ptr<SimulatedBoard> board;
    std::unique_ptr<Coordinator> coordinator;
    std::vector<Batch> batches;
    Status outcome;
    bool has_left = false;
    bool has_crashed = false;
    bool is_due = false;  // Listed in due_.
  };

  Options options_;
  std::mt19937 random_;
  std::vector<Rank> ranks_;
  std::map<std::pair<Voice, int>, VoteWord> words_;  // By rank.
  std::vector<int> due_;                             // Ranks that may have something to do.
  std::map<std::pair<int, int>, std::deque<Bytes>> wires_;
  std::vector<std::pair<int, int>> busy_wires_;  // Keys of wires_ that hold something.
  std::pair<int, int> held_{-1, -1};             // Not among them.
};

// A float32 allreduce.
Request MakeRequest(std::string name, std::vector<int64_t> dims = {4});
std::string ResponseText(const Response& response);

}  // namespace mydist
