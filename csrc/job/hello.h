// Hello: what the ranks of a job tell each other before anything else, and what must be equal.
// Pure, but for MakeHello. All ranks compare the same hellos, so all come to the same outcome.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/usable_cores.h"
#include "world/topology.h"

namespace mydist {

// Of all that ranks of a job send each other: raise it with every change of a message, of the
// memory that they share or of the rounds of the start. The version alone does not tell two builds
// of one release apart.
inline constexpr int kProtocol = 6;

// How many descriptors a process may still open.
struct OpenFiles {
  int64_t free_count = -1;  // Of those below the limit; negative: not known.
  int64_t limit = -1;       // RLIMIT_NOFILE.

  bool operator==(const OpenFiles&) const = default;

  // At the time it is asked.
  static OpenFiles OfThisProcess();
};

struct Hello {
  // These are the same lines in every protocol, so that any two builds can name each other.
  int protocol = kProtocol;
  std::string version;   // Of mydist.
  std::string platform;  // Byte order and word size.
  std::string host;      // What identifies the host.
  int64_t pid = 0;
  // Only of ranks with the protocol of this one.
  bool wants_timeline = false;  // Rank 0's decides for the job.
  std::string pid_namespace;    // In which `pid` is its number; empty: not known.
  UsableCores cores;
  OpenFiles files;
  std::string config_digest;  // Config::Digest: "name=value" lines.

  bool operator==(const Hello&) const = default;

  // Whether this process sees the other one under its pid: both are on one host, and not in
  // containers that number their processes each for itself.
  bool Sees(const Hello& other) const {
    const bool is_known = !pid_namespace.empty() && pid_namespace == other.pid_namespace;
    return is_known && host == other.host;
  }
};

// This process's version and platform filled in.
Hello MakeHello(std::string host, std::string config_digest);

std::vector<uint8_t> EncodeHello(const Hello& hello);
// kVersionMismatch when the bytes are no hello of any protocol.
Result<Hello> DecodeHello(const std::vector<uint8_t>& bytes);
// Of all ranks. The error names the first rank that sent something else.
Result<std::vector<Hello>> DecodeHellos(const std::vector<std::vector<uint8_t>>& blobs);

// kVersionMismatch when protocol, version or platform differ, kMismatch when settings do. The text
// has a table for what differs: each value, and the ranks that have it. The ranks that differ from
// most others are in the failure record.
Status CompareHellos(const std::vector<Hello>& hellos);

// As rank `rank` knows the job, with the pids.
Result<Topology> TopologyOf(int rank, const std::vector<Hello>& hellos);

// Whether there is no core for each rank of the host.
bool IsCrowded(const std::vector<Hello>& hellos, const std::string& host);

// kInternal, naming the first rank that cannot open `needed_count` descriptors.
Status CheckOpenFiles(const std::vector<Hello>& hellos, int64_t needed_count);

}  // namespace mydist
