// OwnSockets: sockets that no other process may hold. A peer learns of the death of a rank when its
// sockets close, and they stay open as long as a child has them: a program that the rank has
// started does not inherit them, and a forked child closes them. Thread-safe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/export.h"

namespace mydist {

// The descriptors that this process has open; nothing, with errno, when the system does not tell.
MYDIST_EXPORT std::optional<std::set<int>> OpenDescriptors();

class MYDIST_EXPORT OwnSockets {
 public:
  // For a library that does not tell its descriptors: before it opens the first. They are what is
  // opened until Keep and may be inherited, for all else in a Python program may not.
  OwnSockets();
  // These, which are open.
  explicit OwnSockets(std::span<const int> descriptors);
  // Before they are closed: the numbers may be those of other files then.
  ~OwnSockets();
  OwnSockets(const OwnSockets&) = delete;
  OwnSockets& operator=(const OwnSockets&) = delete;

  // The library has opened all.
  void Keep();

  struct Socket {
    int descriptor;
    ino_t inode;  // Tells it from a later file with its number.
  };

 private:
  void Register();
  void Add(int descriptor, std::vector<Socket>& sockets);

  std::set<int> before_;
  std::vector<Socket> sockets_;
};

}  // namespace mydist
