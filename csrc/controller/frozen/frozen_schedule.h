// FrozenSchedule: what one rank does while negotiation rests: it holds the tensors the rank
// submits, says when it votes READY or BREAK, and when a bucket is executed. Pure: submissions, the
// words of the other ranks and `now` go in. Owned by FrozenMode. The protocol, and why it is right,
// is docs/decisions/0008-frozen-schedule.md.
// Invariants: one bucket at a time, in order; a vote is never taken back; the rank thaws only with
// no READY of its own undecided.
#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "controller/frozen/step_history.h"
#include "controller/messages/request.h"
#include "transport/vote_board.h"

namespace mydist {

struct FrozenBucket {
  Bucket bucket;
  std::vector<int32_t> ranks;  // Of the process set, ascending.
};

struct FrozenPatience {
  // A caller waits, and the next bucket lacks a tensor of this rank: BREAK.
  Duration with_caller = std::chrono::milliseconds(5);
  // The same when no caller waits; or this rank is READY and others are not: it asks for a thaw.
  Duration without = std::chrono::seconds(1);
};

// So that a stall is reported in good time; zero: there are no reports.
FrozenPatience PatienceFor(Duration stall_warning);

class FrozenSchedule {
 public:
  using WordReader = std::function<VoteWord(Voice voice, int32_t rank)>;

  // `boards`: of each rank the lowest one it shares a board with; empty: all share one.
  // `most_buckets`: then it breaks; the same on all ranks.
  FrozenSchedule(int32_t rank, std::vector<int32_t> boards, FrozenPatience patience,
                 uint64_t most_buckets = VoteLimits().buckets)
      : rank_(rank), boards_(std::move(boards)), patience_(patience), most_buckets_(most_buckets) {}

  // The stream says freeze, for the `freeze`-th time; not while active.
  void Freeze(uint32_t freeze, std::vector<FrozenBucket> buckets, TimePoint now);
  // From Freeze until Advance says kThaw. While not, nothing else may be called.
  bool active() const { return active_; }

  // This rank is ready for the tensor. What the schedule does not expect makes it vote BREAK.
  void Submit(Request request, TimePoint now);
  // Whether it is held already: in flight.
  bool Holds(const Request& request) const;
  // Any other reason to vote BREAK at the first bucket without a vote. May be repeated.
  void Break() { wants_break_ = true; }
  // This rank is gone: it says BREAK, by word(), wherever it has not voted. No longer active.
  void Abandon();
  // A caller of this rank waits for a tensor; or no caller does any more.
  void SetWaiting(bool waiting, TimePoint now);

  enum class Move {
    kNone,  // Nothing before a word changes, something is submitted, or the deadline.
    // After all others: do what it says, and call again.
    kReady,    // Show word(kRank) to judges(): this rank is READY for one more bucket.
    kTell,     // Send word(kHost) to far(): so are all on this host, whose leader this rank is.
    kExecute,  // Show word(kOutcome) to near() if leads(). Execute TakeExecuted(): all are READY.
    kThaw,     // Show all words to everybody. Announce TakeHeld(). No longer active.
  };
  Move Advance(const WordReader& read, TimePoint now);

  VoteWord word(Voice voice) const { return words_[static_cast<size_t>(voice)]; }
  // Of the bucket of the last move.
  Bucket TakeExecuted() { return std::move(executed_); }
  std::span<const int32_t> near() const { return current_->near; }  // The members on this host.
  std::span<const int32_t> judges() const;  // Those of them that read this rank's vote.
  std::span<const int32_t> far() const { return current_->far; }
  bool leads() const { return Leads(*current_); }
  // All ranks that may wait for a word of this rank: on this host, and leaders on others. Until
  // Freeze.
  std::span<const int32_t> all_near() const { return all_near_; }
  std::span<const int32_t> all_far() const { return all_far_; }
  // What was submitted and not executed, in order of submission.
  std::vector<Request> TakeHeld();

  // Whether this rank has voted BREAK because it waited in vain for a tensor of its own.
  bool was_starved() const { return was_starved_; }
  // This rank is READY for a bucket, and not all others have voted.
  bool HasUndecidedVote() const { return has_voted_; }
  // The rank that alone can tell this one the outcome of its vote; -1: it sees for itself, or has
  // none.
  int32_t teller() const;
  // While there is one: the ranks whose words are still to come, as far as this rank reads them.
  std::vector<int32_t> Undecided(const WordReader& read) const;
  // While there is one: whether Advance has something to do about it.
  bool IsDecided(const WordReader& read) const { return Judge(read) != Verdict::kUndecided; }
  // The others should be asked to thaw. Says so once per freeze.
  bool TakeWish(TimePoint now);
  TimePoint NextDeadline() const;
  bool HasHeld() const { return held_count_ > 0 || !strays_.empty(); }
  uint64_t step_count() const { return step_count_; }  // Whole cycles, of all freezes.

 private:
  struct Held {
    Request request;
    uint64_t number = 0;  // Order of submission.
  };
  struct Entry {
    Bucket bucket;
    int32_t own_index = -1;                 // Of this rank in the set; -1: none of its business.
    std::vector<int32_t> near;              // Members on this host; the first one leads.
    std::vector<int32_t> far;               // The leaders on other hosts.
    std::vector<std::optional<Held>> held;  // By tensor.
    size_t missing = 0;
  };
  struct Place {
    size_t entry = 0;
    size_t tensor = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Key {
    ProcessSetId process_set;
    std::string_view name;  // Lives in the Turns' agreement.
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return std::hash<std::string_view>()(key.name) ^ static_cast<size_t>(key.process_set) << 1;
    }
  };
  // When a tensor of this name is next.
  struct Turns {
    std::shared_ptr<const Agreement> agreement;
    std::vector<Place> places;  // Ascending.
  };
  enum class Verdict { kUndecided, kReady, kBroken, kHostReady };

  int32_t BoardOf(int32_t rank) const {
    return boards_.empty() ? 0 : boards_[static_cast<size_t>(rank)];
  }
  bool Leads(const Entry& entry) const { return !entry.far.empty() && entry.near[0] == rank_; }
  void AddEntry(FrozenBucket bucket);
  void AddPlace(Place place);
  void RemovePlace(Place place);
  void Renumber(size_t entry);
  void Seat(Entry& entry, const std::vector<int32_t>& ranks) const;
  size_t Head() const { return static_cast<size_t>(head_ % cycle_.size()); }
  bool IsStarved() const;  // Something is held, and the next bucket lacks a tensor.
  TimePoint PatienceEnd() const;
  const Place* FindPlace(const Request& request) const;
  // Whose words decide the vote next, as far as this rank reads them.
  struct Words {
    std::span<const int32_t> ranks;
    Voice voice;
  };
  Words AwaitedWords() const;
  Verdict Judge(const WordReader& read) const;
  Verdict JudgeAll(std::span<const int32_t> ranks, Voice voice, const WordReader& read) const;
  Move Execute(TimePoint now);
  Move Thaw();
  void SkipOthers();

  const int32_t rank_;
  const std::vector<int32_t> boards_;
  const FrozenPatience patience_;
  const uint64_t most_buckets_;
  bool active_ = false;
  bool wants_break_ = false;
  bool has_voted_ = false;
  bool has_own_ = false;  // Some bucket is of this rank.
  std::vector<Entry> cycle_;
  std::unordered_map<Key, Turns, KeyHash> turns_;  // Of this rank.
  std::vector<int32_t> all_near_;
  std::vector<int32_t> all_far_;
  std::vector<Held> strays_;       // Not of the schedule.
  std::array<VoteWord, 3> words_;  // By voice.
  uint64_t head_ = 0;              // The next bucket, counted from the freeze.
  const Entry* current_ = nullptr;
  Bucket executed_;
  size_t held_count_ = 0;
  uint64_t submitted_count_ = 0;
  uint64_t step_count_ = 0;

  TimePoint progress_time_;  // Something was submitted, or a bucket executed.
  TimePoint vote_time_;
  TimePoint waiting_since_ = kNever;
  bool has_wished_ = false;
  bool was_starved_ = false;
};

}  // namespace mydist
