// Hello: what ranks tell each other before anything else, and what must be equal. Pure.
// All ranks compare the same hellos, so all come to the same outcome.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/usable_cores.h"

namespace mydist {

struct Hello {
  std::string version;   // Of mydist.
  std::string platform;  // Byte order and word size.
  std::string host;      // What identifies the host.
  int64_t pid = 0;
  bool wants_timeline = false;  // Rank 0's decides for the job.
  UsableCores cores;
  std::string config_digest;  // Config::Digest: "name=value" lines.

  bool operator==(const Hello&) const = default;
};

// This process's version and platform filled in.
Hello MakeHello(std::string host, std::string config_digest);

std::vector<uint8_t> EncodeHello(const Hello& hello);
// kVersionMismatch when the bytes are no hello of any version.
Result<Hello> DecodeHello(const std::vector<uint8_t>& bytes);

// Compares everybody with rank 0. kVersionMismatch with a table of versions per rank;
// kMismatch naming the variables that differ, their values and ranks.
Status CompareHellos(const std::vector<Hello>& hellos);

}  // namespace mydist
