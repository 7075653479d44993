// ShmVoteBoard: the board of the ranks of one host: words in the arena, and the control plane's way
// to wake. Owned by the engine; used by whoever drives it.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "base/check.h"
#include "memory/shm/votes.h"
#include "transport/control_plane.h"
#include "transport/shm_port.h"
#include "transport/vote_board.h"

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

}  // namespace mydist
