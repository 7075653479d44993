// GoodbyeGrace: how long a transfer still waits for a peer that has said goodbye, as what that one
// sent before may be on its way. Pure; owned by one call of MpiTransport::Exchange.
#pragma once

#include "base/clock.h"

namespace mydist {

class GoodbyeGrace {
 public:
  explicit GoodbyeGrace(Duration grace) : grace_(grace) {}

  // `departed`: a peer that is waited for and has said goodbye; -1: none. Whether it has been
  // waited for long enough. Each peer has the whole time: it is not its fault that another one left
  // before.
  bool IsOver(int departed, TimePoint now) {
    if (departed != peer_) {
      peer_ = departed;
      end_ = now + grace_;
    }
    return departed >= 0 && now >= end_;
  }

 private:
  const Duration grace_;
  int peer_ = -1;
  TimePoint end_;
};

}  // namespace mydist
