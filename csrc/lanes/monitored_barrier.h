// MonitoredBarrier: a barrier of the members of a lane that names every member which did not come.
// It goes by messages, beside the queue of the lane: a member that is in another operation, or has
// none, has not come. Member 0 calls the roll, and tells the others its outcome.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/export.h"
#include "base/status.h"
#include "lanes/lane_posts.h"

namespace mydist {

// As one member calls it.
struct MonitoredCall {
  int rank = 0;
  int size = 1;
  std::string group;    // For messages.
  uint64_t number = 1;  // Of the member's calls in this group; all members have the same ones.
  Duration limit{};     // For the others to come.
  // Ends the receives of the group when a member has given up; asked while the call waits.
  std::function<void()> look{};
};

// OK when all have come. Else kTimeout with the ranks that did not, or what the group failed with:
// the same error on all that came. The group stays usable after a time-out; one that comes late
// gets the error of its call, too.
MYDIST_EXPORT Status MonitoredBarrier(LanePosts& posts, const MonitoredCall& call);

}  // namespace mydist
