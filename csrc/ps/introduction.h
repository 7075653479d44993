// Introduction: what a worker or a server says of itself, and how logs and errors name it. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "base/export.h"
#include "base/status.h"

namespace mydist::ps {

// A worker: its rank; a server: its number.
struct Introduction {
  int number = 0;
  int64_t pid = 0;
  std::string host;      // For errors; at most 255 bytes.
  uint64_t session = 0;  // A worker's: the same when it connects again after a broken connection.
};

// "rank 3 (host node7, pid 4711)".
MYDIST_EXPORT std::string WorkerText(const Introduction& worker);
// "server 0 (host node7, pid 4711)".
MYDIST_EXPORT std::string ServerText(const Introduction& server);
// Blames the worker.
MYDIST_EXPORT Failure FailureOf(const Introduction& worker);

}  // namespace mydist::ps
