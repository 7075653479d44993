// Nonce: random bytes by which the ranks of a host tell one file, or one process, from another.
// Pure value; drawn by any thread.
#pragma once

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace mydist::shm {

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
