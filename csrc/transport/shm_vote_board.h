// ShmVoteBoard: the board of the ranks of one host: words in the arena, and the control plane's way
// to wake. Owned by the engine; used by whoever drives it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "memory/shm/arena.h"
#include "transport/control_plane.h"
#include "transport/shm_transport.h"
#include "transport/vote_board.h"

// Votes: a few words of every rank of the host, for all to read: what it says to agree on without
// messages. They mean nothing here. Owned by whoever votes and used by whoever drives the engine;
// the arena outlives it. All words are 0 at first; each has one writer, which has a line of its
// own.

namespace mydist::shm {

class Votes {
 public:
  static constexpr size_t kWords = VoteLine::kWords;  // Of each rank.

  explicit Votes(Arena* arena) : arena_(arena) {}

  // In place of the word before. Never blocks, wakes nobody. `number` < kWords.
  void Cast(size_t number, uint64_t word) {
    arena_->vote(arena_->index()).words[number].store(word, std::memory_order_release);
  }

  // The latest word of a rank, an index in the arena.
  uint64_t Read(size_t number, int rank) const {
    return arena_->vote(rank).words[number].load(std::memory_order_acquire);
  }

 private:
  Arena* const arena_;
};

}  // namespace mydist::shm

namespace mydist {

class ShmVoteBoard final : public VoteBoard {
 public:
  // Both outlive the board.
  ShmVoteBoard(shm::ShmPort* port, ControlPlane* plane)
      : arena_(port->arena()),
        rank_(arena_.ranks()[static_cast<size_t>(port->index())]),
        plane_(plane),
        votes_(&port->arena()) {}

  void Cast(Voice voice, const VoteWord& word, std::span<const int32_t> members) override {
    VoteWord& last = last_[NumberOf(voice)];
    MYDIST_CHECK(word.Follows(last));  // A vote is cast once.
    last = word;
    votes_.Cast(NumberOf(voice), word.Pack());
    Nudge(members);
  }

  VoteWord Read(Voice voice, int32_t rank) const override {
    return VoteWord::Unpack(votes_.Read(NumberOf(voice), *arena_.IndexOf(rank)));
  }

 private:
  static constexpr size_t kVoices = 2;
  static_assert(kVoices <= shm::Votes::kWords);

  static size_t NumberOf(Voice voice) {
    MYDIST_CHECK(voice != Voice::kHost);
    return voice == Voice::kRank ? 0 : 1;
  }

  void Nudge(std::span<const int32_t> members) {
    for (const int32_t member : members) {
      if (member != rank_) plane_->Nudge(member);
    }
  }

  const shm::Arena& arena_;
  const int rank_;
  ControlPlane* const plane_;
  shm::Votes votes_;
  std::array<VoteWord, kVoices> last_;
};

// LoneVoteBoard: the board of a rank that shares no memory with others: nobody is to see what it
// says but by messages. Owned by the engine; used by whoever drives it.

class LoneVoteBoard final : public VoteBoard {
 public:
  void Cast(Voice /*voice*/, const VoteWord& /*word*/,
            std::span<const int32_t> /*members*/) override {}

  VoteWord Read(Voice /*voice*/, int32_t /*rank*/) const override {
    MYDIST_CHECK(false);
    return {};
  }
};

}  // namespace mydist
