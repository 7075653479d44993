#include "transport/gloo/wire.h"

#include <algorithm>

namespace mydist {

std::vector<uint8_t> EncodePlace(const Place& place) {
  const std::string text = place.pid + ":" + place.host_id;
  std::vector<uint8_t> bytes(place.greeting.begin(), place.greeting.end());
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

Place DecodePlace(const std::vector<uint8_t>& bytes) {
  Place place;
  const size_t greeting_bytes = std::min(bytes.size(), place.greeting.size());
  std::copy_n(bytes.begin(), greeting_bytes, place.greeting.begin());
  const std::string text(bytes.begin() + static_cast<std::ptrdiff_t>(greeting_bytes), bytes.end());
  const size_t colon = text.find(':');
  place.host_id = colon == std::string::npos ? text : text.substr(colon + 1);
  place.pid = colon == std::string::npos ? "?" : text.substr(0, colon);
  return place;
}

std::vector<uint8_t> EncodeOutcome(const Outcome& outcome) {
  std::vector<uint8_t> bytes{static_cast<uint8_t>(outcome.status.code()),
                             static_cast<uint8_t>(outcome.may_repeat)};
  const std::string& text = outcome.status.message();
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

std::optional<Outcome> DecodeOutcome(const std::vector<uint8_t>& bytes) {
  if (bytes.size() < 2 || bytes[0] > static_cast<uint8_t>(StatusCode::kInternal)) {
    return std::nullopt;
  }
  Outcome outcome;
  outcome.may_repeat = bytes[1] != 0;
  if (bytes[0] != 0) {
    outcome.status = Status(static_cast<StatusCode>(bytes[0]), {bytes.begin() + 2, bytes.end()});
  }
  return outcome;
}

}  // namespace mydist
