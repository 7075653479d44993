// Introduction: what ranks tell each other through the job's rendezvous around their connections
// over Gloo, as bytes and back. Pure; used by the plugin's Connect.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace mydist {

// What a rank says first over a connection; secret until then.
using Greeting = std::array<uint8_t, 16>;

// Before they connect.
struct Place {
  std::string host_id;
  std::string pid;  // Without a colon.
  Greeting greeting{};

  bool operator==(const Place&) const = default;
};

std::vector<uint8_t> EncodePlace(const Place& place);
// Of any bytes: what they lack is empty, and a wrong greeting fails later.
Place DecodePlace(const std::vector<uint8_t>& bytes);

// After an attempt to connect.
struct Outcome {
  Status status;           // Of all ranks together: of the first one where it is not OK.
  bool may_repeat = true;  // All ranks together: on each of them.
};

std::vector<uint8_t> EncodeOutcome(const Outcome& outcome);
// Nothing when the bytes are no outcome.
std::optional<Outcome> DecodeOutcome(const std::vector<uint8_t>& bytes);

}  // namespace mydist
