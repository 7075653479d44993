// Failure: what is known of an error besides its code and its words, as data: what code decides by,
// peers and the launcher are told, and Python's exceptions carry. No code reads a message.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mydist {

// Unknown fields are empty, or 0.
struct Failure {
  std::string operation;   // Such as "allreduce".
  std::string tensor;      // The one it is about, also where others fail with it.
  std::string phase;       // "start", "negotiate", "reduce" or "shut down".
  std::vector<int> ranks;  // Whom it is blamed on.
  std::string host;        // Theirs, where it is one.
  int64_t pid = 0;
  int signal = 0;
  std::string cause;  // What went wrong first, and on which rank, where this is only a consequence.
  std::string hint;   // What to do.

  bool operator==(const Failure&) const = default;
};

}  // namespace mydist
