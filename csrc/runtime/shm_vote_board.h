// ShmVoteBoard: the board of the ranks of one host: words in the arena, and the control plane's way
// to wake. Owned by the engine; used by whoever drives it.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "controller/control_plane.h"
#include "controller/vote_board.h"
#include "ops/shm/shm_port.h"
#include "ops/shm/votes.h"

namespace mydist {

class ShmVoteBoard final : public VoteBoard {
 public:
  // Both outlive the board.
  ShmVoteBoard(shm::ShmPort* port, ControlPlane* plane)
      : ranks_(port->arena().ranks()),
        rank_(ranks_[static_cast<size_t>(port->index())]),
        plane_(plane),
        votes_(&port->arena()) {
    index_of_.resize(static_cast<size_t>(ranks_.back()) + 1, -1);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      index_of_[static_cast<size_t>(ranks_[i])] = static_cast<int>(i);
      // One wake for nothing, to see whether there are any.
      if (ranks_[i] != rank_) wakes_peers_ = plane->Nudge(ranks_[i]);
    }
  }

  void Cast(Voice voice, const VoteWord& word, std::span<const int32_t> members) override {
    VoteWord& last = last_[NumberOf(voice)];
    MYDIST_CHECK(word.Follows(last));  // A vote is cast once.
    last = word;
    votes_.Cast(NumberOf(voice), word.Pack());
    for (const int32_t member : members) {
      if (member != rank_) wakes_peers_ = plane_->Nudge(member);
    }
  }

  VoteWord Read(Voice voice, int32_t rank) const override {
    const int index = index_of_[static_cast<size_t>(rank)];
    return VoteWord::Unpack(votes_.Read(NumberOf(voice), index));
  }

  bool wakes_peers() const override { return wakes_peers_; }

 private:
  static size_t NumberOf(Voice voice) {
    MYDIST_CHECK(voice != Voice::kHost);
    return voice == Voice::kRank ? 0 : 1;
  }

  const std::vector<int> ranks_;  // Of the host, ascending.
  const int rank_;
  ControlPlane* const plane_;
  std::vector<int> index_of_;  // In the arena, by rank of the job.
  shm::Votes votes_;
  std::array<VoteWord, shm::Votes::kWords> last_;
  bool wakes_peers_ = true;
};

}  // namespace mydist
