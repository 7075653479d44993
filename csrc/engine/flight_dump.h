// FlightDump: what a FlightRecorder holds as a file of JSON lines, for `python -m mydist.debug`.
// Called by the FlightDumper's thread. See decision 0021 for the format.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "engine/flight_recorder.h"

namespace mydist {

// Whose operations they are. A rank may have both.
enum class FlightDumpKind { kJob, kGroups };

// Which rank writes, and why.
struct FlightDumpHeader {
  FlightDumpKind kind = FlightDumpKind::kJob;
  int rank = 0;
  int size = 1;
  std::string host;
  int64_t pid = 0;
  std::string version;  // Of mydist.
  std::string reason;   // "failure", "stall" or "signal".
  std::string message;  // Of the first failure or, without one, of the last stall; may be empty.
  // Both of the same moment, so that times of the records can be compared between hosts.
  int64_t wall_ns = 0;
  int64_t monotonic_ns = 0;
  int64_t started_wall_ns = 0;
};

inline constexpr int kFlightDumpFormat = 1;

std::string FlightDumpText(const FlightDumpHeader& header, const FlightRecorder& recorder);

// "flight_recorder_rank3.json", or "flight_recorder_groups_rank3.json".
std::string FlightDumpName(FlightDumpKind kind, int rank);

// Writes the text to `name` in the folder, which is made if it is missing. Replaces a file, follows
// no symbolic link, and leaves no half-written file under that name. kInternal names path and
// cause.
Status WriteFlightDump(const std::string& folder, const std::string& name, const std::string& text);

}  // namespace mydist
