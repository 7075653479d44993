// What is said of a rank that has left the job while another one still needs it.
#pragma once

#include <string>

#include "base/export.h"
#include "base/status.h"

namespace mydist {

// kPeerLost. `why`: what went wrong first, as that rank told; empty when it told nothing.
MYDIST_EXPORT Status PeerHasLeft(const std::string& who, const std::string& why);

}  // namespace mydist
