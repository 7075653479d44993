// TraceWriter: rank 0's end of the timeline: all ranks' events into one Chrome trace file.
// Owned by the engine of rank 0, which calls every method; an own thread formats and writes, so
// that a slow disk never holds up a collective. Every rank is a process of the trace (pid = rank),
// every lane a thread of it. The file is valid JSON after every write (see trace_file.h); a write
// error ends the recording with one warning, never the training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/export.h"
#include "base/status.h"
#include "timeline/event.h"

namespace mydist {

class MYDIST_EXPORT TraceWriter {
 public:
  // Events that may wait for the disk; more are dropped and counted.
  static constexpr size_t kMaxWaitingEventCount = size_t{512} << 10;

  // Creates or empties the file (0600, a symbolic link is not followed) and starts the thread; the
  // trace's time 0 is now. `hosts[r]`, where given, is shown with rank r. kInvalidArgument naming
  // the path and the cause when it cannot be written: log it once and go on without a timeline.
  static Result<std::unique_ptr<TraceWriter>> Open(const std::string& path, int size,
                                                   const std::vector<std::string>& hosts = {});
  // Closes.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Hands events of `rank` over, in the order that rank recorded them. `clock_offset_ns` is added
  // to their times to get times of our clock. Does not wait; a rank outside the job is ignored.
  void Append(int rank, std::vector<TimelineEvent> events, int64_t clock_offset_ns);

  // How many events `rank` itself has dropped so far; written into the file by Close.
  void SetDroppedCount(int rank, int64_t dropped_count);

  // Blocks until everything appended before is in the file or lost to a write error.
  void Flush();

  // Flushes, ends what is still open, writes the drop counts and closes the file. Blocking. The
  // first write error if there was one (it has been logged). Later calls return the same.
  Status Close();

  // Events dropped here, because the disk was too slow or after a write error.
  int64_t dropped_count();

 private:
  class Core;
  explicit TraceWriter(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace mydist
