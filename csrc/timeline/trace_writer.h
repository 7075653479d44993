// TraceWriter: rank 0's end of the timeline: all ranks' events into one Chrome trace file.
// Owned by the engine of rank 0, which calls every method; an own thread formats and writes, so
// that a slow disk never holds up a collective. Every rank is a process of the trace (pid = rank),
// every lane a thread of it. The file is valid JSON after every write; a write error ends the
// recording with one warning, never the training.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/export.h"
#include "base/mutex.h"
#include "base/status.h"
#include "timeline/event.h"
#include "timeline/trace_format.h"

namespace mydist {

// Of mapped memory of that length, in bytes.
struct UnmapPages {
  size_t length = 0;
  void operator()(char* memory) const;
};

// TraceFile: a JSON array on disk that can be appended to and is valid JSON at every moment.
// Owned by the TraceWriter, used by one thread at a time; knows nothing of what the records mean.
// The kernel copies a write page by page and may stop between two pages when the process is killed.
// So every write stays inside one page of the file: it overwrites the closing bracket by ", records
// and a new closing bracket". A page that is full is followed by one of spaces, and the bracket
// moves over the boundary between them by one two-byte store into mapped memory, which no signal
// can split. (Where memory cannot be mapped: by a two-byte write, which a kill may split if it
// comes between its two bytes.) After a power failure only the file system decides what is there.
// Pages of spaces are made, and mapped, several at a time; those left over are cut off at the end.
class TraceFile {
 public:
  static constexpr size_t kPageBytes = 4096;
  // Longest record: it, its separator and the bracket fit into a page.
  static constexpr size_t kMaxRecordBytes = kPageBytes - 16;

  // Creates (0600) or empties the file; it then holds an empty array (only between emptying and the
  // first write, microseconds, it is no JSON). kInvalidArgument naming the
  // path and the cause: not a regular file, a symbolic link, not ours, in use by another job, …
  static Result<TraceFile> Open(const std::string& path);
  ~TraceFile();
  TraceFile(TraceFile&& other) noexcept;
  TraceFile& operator=(TraceFile&&) = delete;
  TraceFile(const TraceFile&) = delete;

  // Adds records, JSON texts of at most kMaxRecordBytes each. Blocking. kInternal naming the path
  // and the cause (disk full, …): the first record_count() records are in the valid file.
  Status Append(const TraceRecords& records);

  // Records in the file, since Open.
  size_t record_count() const { return record_count_; }

  // Cuts off unused spaces and closes the file. Nothing but the destructor follows.
  Status Close();

 private:
  struct alignas(kPageBytes) Page {
    std::array<char, kPageBytes> bytes;
  };

  static constexpr int64_t kPagesAtOnce = 16;

  TraceFile(int descriptor, std::string path);
  Status Initialize();
  Status Commit(bool fill_page);
  Status StartNextPage();
  Status MakePage(int64_t start);
  bool MoveBracketInMemory(int64_t place);
  bool MapFrom(int64_t place);
  Status WriteInPage(std::string_view text, int64_t offset);
  Status Failure(const char* action, int error) const;

  int descriptor_;
  std::string path_;
  // What write reads from: one page of memory, so that a write cannot stop half-way in it either.
  std::unique_ptr<Page> buffer_;
  int64_t page_start_ = 0;  // Offset of the page that holds the bracket; after it, only spaces.
  size_t bracket_ = 0;      // The bracket's offset inside that page.
  int64_t end_ = 0;         // Of the file.
  // Of the file, mapped: from here to what was its end then.
  int64_t window_start_ = 0;
  std::unique_ptr<char, UnmapPages> window_;
  std::string pending_;  // Records to be written from the bracket on.
  size_t pending_count_ = 0;
  size_t record_count_ = 0;
};

class MYDIST_EXPORT TraceWriter {
 public:
  // Events that may wait for the disk; more are dropped and counted.
  static constexpr size_t kMaxWaitingEventCount = size_t{512} << 10;

  // Creates or empties the file (0600, a symbolic link is not followed) and starts the thread; the
  // trace's time 0 is now. `hosts[r]`, where given, is shown with rank r. kInvalidArgument naming
  // the path and the cause when it cannot be written: log it once and go on without a timeline.
  static Result<std::unique_ptr<TraceWriter>> Open(const std::string& path, int size,
                                                   const std::vector<std::string>& hosts = {});
  // The file of one rank of several, on the clock of its host: files of one host can be laid side
  // by side.
  static Result<std::unique_ptr<TraceWriter>> OpenOfRank(const std::string& path, int rank,
                                                         int size, const std::string& host);
  // Closes.
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Hands events of `rank` over, in the order that rank recorded them. `clock_offset_ns` is added
  // to their times to get times of our clock. Does not wait; a rank outside the job is ignored.
  void Append(int rank, std::vector<TimelineEvent> events, int64_t clock_offset_ns)
      MYDIST_EXCLUDES(mutex_);

  // How many events `rank` itself has dropped so far; written into the file by Close.
  void SetDroppedCount(int rank, int64_t dropped_count) MYDIST_EXCLUDES(mutex_);

  // Blocks until everything appended before is in the file or lost to a write error.
  void Flush() MYDIST_EXCLUDES(mutex_);

  // Flushes, ends what is still open, writes the drop counts and closes the file. Blocking. The
  // first write error if there was one (it has been logged). Later calls return the same.
  Status Close() MYDIST_EXCLUDES(mutex_);

  // Events dropped here, because the disk was too slow or after a write error.
  int64_t dropped_count() MYDIST_EXCLUDES(mutex_);

 private:
  struct Delivery {
    int rank = 0;
    int64_t clock_offset_ns = 0;
    std::vector<TimelineEvent> events;
  };
  struct DropCount {
    int64_t by_rank = 0;  // As the rank itself says.
    int64_t here = 0;
  };

  TraceWriter(TraceFile file, int size, int64_t start_ns);
  static Result<std::unique_ptr<TraceWriter>> Start(std::unique_ptr<TraceWriter> writer,
                                                    const TraceRecords& header);
  void Run();
  // Waits for deliveries; none means that the writer is being closed.
  std::vector<Delivery> TakeDeliveries() MYDIST_EXCLUDES(mutex_);
  void Write(const Delivery& delivery) MYDIST_EXCLUDES(mutex_);
  void Finish() MYDIST_EXCLUDES(mutex_);
  // The first error is logged and kept.
  void Note(const Status& status) MYDIST_EXCLUDES(mutex_);
  void CountDropped(int rank, size_t count) MYDIST_REQUIRES(mutex_);

  const int size_;
  std::thread thread_;

  // The writing thread's alone once it runs.
  TraceFile file_;
  TraceFormat format_;
  bool has_failed_ = false;

  Mutex mutex_;
  CondVar arrived_;
  CondVar written_;
  std::vector<Delivery> waiting_ MYDIST_GUARDED_BY(mutex_);
  size_t waiting_event_count_ MYDIST_GUARDED_BY(mutex_) = 0;  // Including those being written.
  bool is_writing_ MYDIST_GUARDED_BY(mutex_) = false;
  bool is_closing_ MYDIST_GUARDED_BY(mutex_) = false;
  std::vector<DropCount> dropped_counts_ MYDIST_GUARDED_BY(mutex_);
  Status outcome_ MYDIST_GUARDED_BY(mutex_);
};

}  // namespace mydist
