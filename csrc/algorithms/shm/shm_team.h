// ShmTeam: the ranks of one process set, seen from one of them. Owned by the ShmCollectives, shared
// by what it consists of.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "transport/shm_transport.h"

namespace mydist::shm {

struct ShmTeam {
  // `members`: indices in the arena of `port`, ascending, the own among them.
  ShmTeam(ShmPort* the_port, std::vector<int> the_members)
      : port(the_port), members(std::move(the_members)), size(static_cast<int>(members.size())) {
    for (int member_rank = 0; member_rank < size; ++member_rank) {
      if (member(member_rank) == port->index()) {
        rank = member_rank;
      } else {
        peers.push_back(member(member_rank));
      }
    }
  }

  int member(int of_rank) const { return members[static_cast<size_t>(of_rank)]; }
  SlotSteps& steps() const { return port->steps(); }
  // Of the slot step in progress.
  uint8_t* SlotOf(int of_rank) const { return steps().SlotOf(member(of_rank)); }

  ShmPort* const port;
  const std::vector<int> members;
  std::vector<int> peers;  // Members but for the own.
  const int size;
  int rank = 0;
};

}  // namespace mydist::shm
