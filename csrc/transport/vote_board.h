// VoteBoard: where ranks of one host show each other what they have to say about the buckets of a
// frozen schedule, without messages. Implemented over the memory the ranks share; owned by the
// engine, used by the thread that drives it. See docs/decisions/0008-frozen-schedule.md.
#pragma once

#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/status.h"

namespace mydist {

// What a rank or host says about all buckets that concern it: READY for those numbered below
// `ready_count`; for all others nothing yet or, once `is_broken`, BREAK. Of the freeze with this
// number only. `ready_count` only grows, up to the break, which is never taken back: a vote is cast
// once.
struct VoteWord {
  uint32_t freeze = 0;
  uint64_t ready_count = 0;
  bool is_broken = false;

  bool operator==(const VoteWord&) const = default;
  bool SaysReady(uint64_t bucket) const { return ready_count > bucket; }
  // Whether no vote of `before` is taken back.
  bool Follows(const VoteWord& before) const {
    if (freeze != before.freeze) return freeze > before.freeze;
    if (before.is_broken) return *this == before;
    return ready_count >= before.ready_count;
  }

  static constexpr int kCountBits = 39;  // A year of buckets every 60 µs.
  static constexpr int kFreezeBits = 24;

  uint64_t Pack() const {
    return (uint64_t{freeze} & ((uint64_t{1} << kFreezeBits) - 1)) << (kCountBits + 1) |
           ready_count << 1 | (is_broken ? 1u : 0u);
  }
  static VoteWord Unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> (kCountBits + 1)),
            word >> 1 & ((uint64_t{1} << kCountBits) - 1), (word & 1) != 0};
  }
};

// How far a word can count: what goes on beyond is negotiated. Less only in tests; the same on all
// ranks.
struct VoteLimits {
  uint32_t freezes = (uint32_t{1} << VoteWord::kFreezeBits) - 1;  // Of the job.
  uint64_t buckets = (uint64_t{1} << VoteWord::kCountBits) - 1;   // Of a freeze.
};

enum class Voice {
  kRank,     // A rank, of its own tensors.
  kHost,     // The leader of a set's ranks on a host, of all of these. Between leaders only.
  kOutcome,  // The same, of what all hosts said.
};

class VoteBoard {
 public:
  virtual ~VoteBoard() = default;

  // Shows this rank's word, in place of the one before. `voice`: not kHost. Ends the wait of
  // `members`, all on this host, for news. Never blocks.
  virtual void Cast(Voice voice, const VoteWord& word, std::span<const int32_t> members) = 0;

  // What `rank` (of the job, on this host) has shown last. Never blocks.
  virtual VoteWord Read(Voice voice, int32_t rank) const = 0;
};

}  // namespace mydist
