// ShmVoteBoard: the board of a job whose ranks are all on this host: words in the arena, and the
// control plane's way to wake. Owned by the engine; used by whoever drives it.
#pragma once

#include <memory>
#include <span>

#include "base/check.h"
#include "controller/control_plane.h"
#include "controller/vote_board.h"
#include "ops/shm/shm_port.h"
#include "ops/shm/votes.h"

namespace mydist {

class ShmVoteBoard final : public VoteBoard {
 public:
  // Both outlive the board; the arena is that of all ranks of the job.
  ShmVoteBoard(shm::ShmPort* port, ControlPlane* plane)
      : rank_(port->index()), plane_(plane), votes_(&port->arena()) {}

  void Cast(const VoteWord& word, std::span<const int32_t> members) override {
    MYDIST_CHECK(Follows(word));
    last_ = word;
    votes_.Cast(word.Pack());
    for (const int32_t member : members) {
      if (member != rank_) wakes_peers_ = plane_->Nudge(member);
    }
  }

  VoteWord Read(int32_t rank) const override { return VoteWord::Unpack(votes_.Read(rank)); }

  bool wakes_peers() const override { return wakes_peers_; }

 private:
  // A vote is cast once.
  bool Follows(const VoteWord& word) const {
    if (word.freeze != last_.freeze) return word.freeze > last_.freeze;
    const bool keeps_break = !last_.is_broken || word.ready_count == last_.ready_count;
    return word.ready_count >= last_.ready_count && word.is_broken >= last_.is_broken &&
           keeps_break;
  }

  const int rank_;
  ControlPlane* const plane_;
  shm::Votes votes_;
  VoteWord last_;
  bool wakes_peers_ = true;
};

}  // namespace mydist
