#include "base/departure.h"

namespace mydist {

Status PeerHasLeft(const std::string& who, const std::string& why) {
  if (why.empty()) {
    return Status::PeerLost(who + " has left the job while it is needed; its output says why");
  }
  return Status::PeerLost(who + " has left the job: " + why).Because(why);
}

}  // namespace mydist
