#include "planner/collectives_choice.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "algorithms/rank_ordered_collectives.h"
#include "algorithms/registry.h"
#include "base/clock.h"
#include "base/log.h"
#include "memory/shm/arena.h"

namespace mydist {

namespace {

// ShmVoteBoard: the board of the ranks of one host: words in the arena, and the control plane's way
// to wake. Owned by the engine; used by the thread that drives it.
class ShmVoteBoard final : public VoteBoard {
 public:
  // Both outlive the board.
  ShmVoteBoard(shm::ShmPort* port, ControlPlane* plane)
      : arena_(port->arena()),
        own_(port->index()),
        rank_(arena_.ranks()[static_cast<size_t>(own_)]),
        plane_(plane) {}

  void Cast(Voice voice, const VoteWord& word, std::span<const int32_t> members) override {
    VoteWord& last = last_[NumberOf(voice)];
    MYDIST_CHECK(word.Follows(last));  // A vote is cast once.
    last = word;
    WordOf(voice, own_).store(word.Pack(), std::memory_order_release);
    Nudge(members);
  }

  VoteWord Read(Voice voice, int32_t rank) const override {
    const int place = *arena_.IndexOf(rank);
    return VoteWord::Unpack(WordOf(voice, place).load(std::memory_order_acquire));
  }

 private:
  static constexpr size_t kVoices = 2;
  static_assert(kVoices <= shm::VoteLine::kWords);

  static size_t NumberOf(Voice voice) {
    MYDIST_CHECK(voice != Voice::kHost);
    return voice == Voice::kRank ? 0 : 1;
  }

  // All are 0 at first; each has one writer, which has a line of its own.
  std::atomic<uint64_t>& WordOf(Voice voice, int place) const {
    return arena_.vote(place).words[NumberOf(voice)];
  }

  void Nudge(std::span<const int32_t> members) {
    for (const int32_t member : members) {
      if (member != rank_) plane_->Nudge(member);
    }
  }

  const shm::Arena& arena_;
  const int own_;
  const int rank_;
  ControlPlane* const plane_;
  std::array<VoteWord, kVoices> last_;
};

// LoneVoteBoard: the board of a rank that shares no memory with others: no rank is to see what it
// says but by messages. Owned by the engine; used by the thread that drives it.
class LoneVoteBoard final : public VoteBoard {
 public:
  void Cast(Voice /*voice*/, const VoteWord& /*word*/,
            std::span<const int32_t> /*members*/) override {}

  VoteWord Read(Voice /*voice*/, int32_t /*rank*/) const override {
    MYDIST_CHECK(false);
    return {};
  }
};

constexpr int kSmallRounds = 5;
constexpr int kLargeRounds = 2;
constexpr int64_t kLargeCount = kProbeBytes / sizeof(float);
// Faster than any memory: keeps the measured time above zero.
constexpr double kLeastSecondsPerByte = 1e-12;

constexpr Reduction kSum{.dtype = DataType::kFloat32, .op = ReduceOp::kSum};

// The fastest of some rounds after one that only warms up: what disturbs a round has no part in
// what the path costs.
Result<double> FastestSeconds(Collectives& collectives, std::span<float> data, int rounds) {
  std::fill(data.begin(), data.end(), 0.0F);
  double fastest = 0;
  for (int round = 0; round <= rounds; ++round) {
    const TimePoint start = Now();
    MYDIST_RETURN_IF_ERROR(collectives.Allreduce(data.data(), std::ssize(data), kSum));
    const double seconds = ToSeconds(Now() - start);
    if (round == 1 || (round > 1 && seconds < fastest)) fastest = seconds;
  }
  return fastest;
}

}  // namespace

Result<Collectives*> ChooseFor(const BatchTraits& traits,
                               const std::vector<std::unique_ptr<Collectives>>& choices) {
  for (const auto& collectives : choices) {
    if (collectives->Supports(traits)) return collectives.get();
  }
  return Status::Internal("no algorithm of this job can run " + std::string(OpKindName(traits.op)) +
                          " of " + std::string(DataTypeName(traits.dtype)) + " on device " +
                          std::to_string(traits.device));
}

std::vector<std::unique_ptr<Collectives>> CollectivesChoice::Make(
    Transport* transport, const std::vector<int>& ranks) const {
  const AlgorithmSite site{.config = *config_,
                           .topology = *topology_,
                           .ranks = ranks,
                           .transport = transport,
                           .shm = shm_};
  std::vector<AlgorithmRow> rows = Algorithms();
  const auto is_named = [&](const AlgorithmRow& row) { return row.name == config_->algorithm; };
  std::stable_partition(rows.begin(), rows.end(), is_named);
  std::vector<std::unique_ptr<Collectives>> choices;
  for (const AlgorithmRow& row : rows) {
    if (!row.keeps_rank_order && !is_named(row)) continue;
    if (auto collectives = row.make(site)) choices.push_back(std::move(collectives));
  }
  return choices;
}

std::unique_ptr<VoteBoard> ChooseVoteBoard(const Config& config, const Topology& topology,
                                           const VotingGround& ground) {
  if (config.freeze_after == 0 || topology.size == 1) return nullptr;
  const std::set<std::string> hosts(topology.hosts.begin(), topology.hosts.end());
  const char* refusal = nullptr;
  if (!ground.shares_everywhere) {
    refusal = "the ranks of a host do not share memory";
  } else if (static_cast<int64_t>(hosts.size()) - 1 > config.coordinator_radix) {
    // Each votes to each other one: more messages than negotiation takes.
    refusal = "the job has more hosts than MYDIST_COORDINATOR_RADIX allows";
  }
  if (refusal != nullptr) {
    if (topology.rank == 0) {
      MYDIST_LOG(kInfo) << "the schedule is never frozen, and MYDIST_FREEZE_AFTER has no effect: "
                        << refusal;
    }
    return nullptr;
  }
  if (ground.shm == nullptr) return std::make_unique<LoneVoteBoard>();
  return std::make_unique<ShmVoteBoard>(ground.shm, ground.control);
}

Result<PathCosts> MeasurePath(const ProbedPath& path) {
  std::vector<float> own(path.memory == nullptr ? kLargeCount : 2);
  const std::span<float> few(own.data(), 2);
  const std::span<float> many(path.memory == nullptr ? own.data() : path.memory, kLargeCount);
  MYDIST_ASSIGN_OR_RETURN(const double small, FastestSeconds(*path.small, few, kSmallRounds));
  double round_trip = small;
  if (path.transport != nullptr) {
    RankOrderedCollectives messages(path.transport);
    MYDIST_ASSIGN_OR_RETURN(round_trip, FastestSeconds(messages, few, kSmallRounds));
  }
  MYDIST_ASSIGN_OR_RETURN(const double large, FastestSeconds(*path.large, many, kLargeRounds));
  const double per_byte = (large - small) / static_cast<double>(kLargeCount * sizeof(float));
  std::array<double, 2> slowest = {small + round_trip + ToSeconds(kWakeUps),
                                   std::max(per_byte, kLeastSecondsPerByte)};
  const Reduction max{.dtype = DataType::kFloat64, .op = ReduceOp::kMax};
  MYDIST_RETURN_IF_ERROR(path.small->Allreduce(slowest.data(), slowest.size(), max));
  return PathCosts{.latency = std::chrono::duration<double>(slowest[0]),
                   .seconds_per_byte = slowest[1]};
}

}  // namespace mydist
