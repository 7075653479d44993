// FlightDumper: writes what a FlightRecorder holds, when something has gone wrong or a user asks.
// Owned by the engine. Request: any thread, without waiting. A thread of its own writes, so that a
// rank that is stuck in a collective still can (decision 0021).
#pragma once

#include <memory>
#include <string>

#include "base/export.h"
#include "base/mutex.h"
#include "engine/flight_dump.h"
#include "engine/flight_recorder.h"

namespace mydist {

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
// Sends SIGQUIT to this process for what lies on top of the handler; nothing is dumped. False when
// the signal is not, or not any more, ours.
MYDIST_EXPORT bool SendQuitToSelf();

}  // namespace mydist
