// Farewell: what a rank that stops with an error tells all others, and what follows from it for one
// of them. Pure. Farewells is owned by the Coordinator and read by its FrozenMode.
// Who ends in order says none. A farewell comes after everything else that its rank has sent and
// cast: what that rank has decided stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace mydist {

struct Farewell {
  // The root tells all who still have the stream. Else this is a loss of theirs.
  bool is_told = false;
  std::string why;  // As FarewellWords.
};

class Farewells {
 public:
  // `parent`: whom this rank has the stream from; -1: the root. `hosts`: of each rank, or empty.
  Farewells(int32_t parent, int32_t size, std::vector<std::string> hosts);

  // Of rank `source`; a second one changes nothing.
  void Take(int32_t source, const Farewell& farewell);

  bool HasLeft(int32_t rank) const { return !LossOf(rank).ok(); }
  // kPeerLost, naming it, or the rank because of which it left, and what went wrong first; OK while
  // it has not left.
  const Status& LossOf(int32_t rank) const { return losses_[static_cast<size_t>(rank)]; }
  // The first of those after which this rank waits for something that will not come: its parent's,
  // or one that the stream does not tell of.
  const Status& loss() const { return loss_; }
  // Whether that one is told of in the stream.
  bool is_loss_told() const { return is_loss_told_; }

 private:
  const int32_t parent_;
  const std::vector<std::string> hosts_;
  std::vector<Status> losses_;  // By rank.
  Status loss_;
  bool is_loss_told_ = false;
};

}  // namespace mydist
