// OwnSockets: the sockets of one Gloo mesh, which no other process may hold. A peer learns of the
// death of a rank when its sockets close, and they stay open as long as a child has them: a program
// that the rank has started does not inherit them, and a forked child closes them.
// Gloo does not tell its descriptors: they are what was opened meanwhile and may be inherited, for
// all else in a Python program may not. Owned by GlooContext. Thread-safe.
#pragma once

#include <sys/types.h>

#include <set>
#include <vector>

namespace mydist {

class OwnSockets {
 public:
  // Before Gloo opens the first.
  OwnSockets();
  // Before Gloo closes them: the numbers may be those of other files then.
  ~OwnSockets();
  OwnSockets(const OwnSockets&) = delete;
  OwnSockets& operator=(const OwnSockets&) = delete;

  // All are open.
  void Keep();

  struct Socket {
    int descriptor;
    ino_t inode;  // Tells it from a later file with its number.
  };

 private:
  std::set<int> before_;
  std::vector<Socket> sockets_;
};

}  // namespace mydist
