// FlightDumper: writes what a FlightRecorder holds, when something has gone wrong or a user asks.
// Owned by the engine. Request: any thread, without waiting. A thread of its own writes, so that a
// rank that is stuck in a collective still can (decision 0021).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine/flight_recorder.h"

namespace mydist {

// FlightDump: what a FlightRecorder holds as a file of JSON lines, for `python -m mydist.debug`.
// Called by the FlightDumper's thread. See decision 0021 for the format.

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

enum class FlightOccasion { kFailure, kStall, kSignal };

struct FlightDumperOptions {
  std::string folder;  // Empty: only a signal makes it write, below the working directory.
  FlightDumpHeader header;
  bool tells_user = false;  // One rank of each host says where the dumps lie.
};

class MYDIST_EXPORT FlightDumper {
 public:
  // Null, with a warning, when the system has no thread left; the job goes on without dumps.
  static std::shared_ptr<FlightDumper> Start(std::shared_ptr<const FlightRecorder> recorder,
                                             FlightDumperOptions options);
  // What has been requested is written, if the disk takes it within some seconds.
  ~FlightDumper();
  FlightDumper(const FlightDumper&) = delete;
  FlightDumper& operator=(const FlightDumper&) = delete;

  void Request(FlightOccasion occasion, const std::string& message);

 private:
  struct Shared;
  explicit FlightDumper(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  const std::shared_ptr<Shared> shared_;
};

// QuitSignal: SIGQUIT makes all FlightDumpers of this process write.

// Installs a handler, only where the disposition is the default one. True when this call has done
// so; the handler then stays until the process ends. It is async-signal-safe, and does nothing in a
// forked child.
MYDIST_EXPORT bool InstallQuitHandler();
// The handler that is there now, and calls ours in turn, counts as ours.
MYDIST_EXPORT void NoteQuitHandlerOnTop();
// Whether the signal is ours in this process, still.
MYDIST_EXPORT bool IsQuitOurs();
// Sends SIGQUIT to this process for what lies on top of the handler; nothing is dumped. False when
// the signal is not ours.
MYDIST_EXPORT bool SendQuitToSelf();

}  // namespace mydist
