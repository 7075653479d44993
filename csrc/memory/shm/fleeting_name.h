// FleetingName: sees to it that a name which a file in shared memory has for a moment, so that a
// process which sees no other can open it, is removed. All ranks of the host are told the name
// before there is such a file, and each holds one of these while there may be: the first that goes,
// in whatever way but SIGKILL, removes it. Owned by the Handshake, which one thread uses.
#pragma once

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace mydist::shm {

class FleetingName {
 public:
  // An empty name is none. Until it is destroyed, signals that end a process remove the name before
  // they have the effect that they had.
  FleetingName(const std::string& directory, const std::string& name);
  // Removes the name; others may have done so already.
  ~FleetingName();
  FleetingName(const FleetingName&) = delete;
  FleetingName& operator=(const FleetingName&) = delete;

 private:
  const std::string path_;  // Empty: none.
};

// Nonce: random bytes by which the ranks of a host tell one file, or one process, from another.
// Pure value; drawn by any thread.

using Nonce = std::array<uint8_t, 16>;

inline Nonce RandomNonce() {
  Nonce nonce{};
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    // Unlikely enough to be told apart by the pid alone.
    const int64_t pid = getpid();
    std::memcpy(nonce.data(), &pid, sizeof pid);
  }
  return nonce;
}

}  // namespace mydist::shm
