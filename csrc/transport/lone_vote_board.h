// LoneVoteBoard: the board of a rank that shares no memory with others: nobody is to see what it
// says but by messages. Owned by the engine; used by whoever drives it.
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "transport/vote_board.h"

namespace mydist {

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
