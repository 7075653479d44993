// LaneJournal: what the lanes of one rank tell a user of themselves: their last operations in a
// FlightRecorder, events for the timeline, and counts. Lanes share it; any thread.
// It needs no engine. Where this process has one, events go to the timeline of its job.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/export.h"
#include "base/mutex.h"
#include "config/config.h"
#include "engine/flight_dumper.h"
#include "engine/flight_recorder.h"
#include "lanes/lane_call.h"
#include "timeline/trace_writer.h"

namespace mydist {

// Messages are those between two members.
struct LaneCounts {
  int64_t operations = 0;  // That have ended, well or not.
  int64_t bytes = 0;       // Of this rank's tensors in them.
  int64_t messages_sent = 0;
  int64_t messages_received = 0;
  int64_t message_bytes = 0;  // Of both.
};

// Any thread.
class LaneCounters {
 public:
  void AddOperation(int64_t bytes) {
    Add(operations_, 1);
    Add(bytes_, bytes);
  }
  void AddSent(int64_t bytes) {
    Add(messages_sent_, 1);
    Add(message_bytes_, bytes);
  }
  void AddReceived(int64_t bytes) {
    Add(messages_received_, 1);
    Add(message_bytes_, bytes);
  }
  LaneCounts counts() const {
    return {operations_.load(), bytes_.load(), messages_sent_.load(), messages_received_.load(),
            message_bytes_.load()};
  }

 private:
  static void Add(std::atomic<int64_t>& count, int64_t more) {
    count.fetch_add(more, std::memory_order_relaxed);
  }

  std::atomic<int64_t> operations_{0};
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> messages_sent_{0};
  std::atomic<int64_t> messages_received_{0};
  std::atomic<int64_t> message_bytes_{0};
};

class MYDIST_EXPORT LaneJournal {
 public:
  // Which rank of the program writes, and where it runs.
  struct Site {
    int rank = 0;
    int size = 1;
    std::string host;
    bool tells_user = false;  // One rank of each host says where dumps lie.
  };
  // That of the rank; made for its first lane, gone with its last.
  static std::shared_ptr<LaneJournal> Of(const Site& site, const Config& config);
  // Of all lanes that this process has had.
  static LaneCounts ProcessCounts();

  LaneJournal(Site site, const Config& config);
  LaneJournal(const LaneJournal&) = delete;
  LaneJournal& operator=(const LaneJournal&) = delete;

  // What the calls below are about: one lane.
  struct Page {
    std::string name;    // Of the group.
    int32_t number = 0;  // In the records.
    std::string track;   // Of the timeline.
    LaneCounters counters;
  };
  // A group of these ranks of the program begins. Its number is the same on all members when each
  // of them opens its groups of one name in one order.
  std::shared_ptr<Page> AddGroup(const std::string& name, const std::vector<int>& ranks)
      MYDIST_EXCLUDES(mutex_);
  // Of the groups that this process has now.
  static std::vector<std::shared_ptr<const Page>> Pages();

  // The record of an operation.
  int64_t Submitted(const Page& page, const LaneCall& call, uint64_t sequence, TimePoint now);
  void Begun(const Page& page, int64_t record, const LaneCall& call, uint64_t sequence,
             TimePoint now);
  void Ended(Page& page, int64_t record, const LaneCall& call, StatusCode code, TimePoint now);

  // A message between two ranks of the program; a negative sender: any.
  struct Message {
    int sender = -1;
    int receiver = -1;
    int tag = 0;
    int64_t bytes = 0;
  };
  int64_t AwaitsMessage(const Page& page, const Message& message, TimePoint now);
  void Received(Page& page, int64_t record, const Message& message, StatusCode code, TimePoint now);
  void Sent(Page& page, const Message& message, TimePoint now);

  // A lane waits longer than usual.
  void Stalled(const std::string& text) const;
  // A lane has ended with this error, whose ranks are of the program.
  void Failed(const Status& status) MYDIST_EXCLUDES(mutex_);
  // The last one of this process; OK: there is none.
  static Status LastFailure();

 private:
  static std::vector<std::shared_ptr<LaneJournal>> OfProcess();
  std::vector<std::shared_ptr<const Page>> OwnPages() MYDIST_EXCLUDES(mutex_);
  Status last_failure() MYDIST_EXCLUDES(mutex_);
  // An event of the timeline, if there is one now: the texts are made only then.
  using Text = std::function<std::string()>;
  void Note(EventPhase phase, std::string_view track, const Text& name, const Text& args)
      MYDIST_EXCLUDES(mutex_);
  void NoteInOwnFile(TimelineEvent event) MYDIST_EXCLUDES(mutex_);

  const Site site_;
  const std::string timeline_path_;  // Empty: none is wanted but that of a job.
  const std::shared_ptr<FlightRecorder> recorder_ = std::make_shared<FlightRecorder>();
  const std::shared_ptr<FlightDumper> dumper_;  // Null: the system has no thread for it.

  Mutex mutex_;
  std::map<std::string, int> openings_ MYDIST_GUARDED_BY(mutex_);  // Of groups of each name.
  std::vector<std::weak_ptr<const Page>> pages_ MYDIST_GUARDED_BY(mutex_);
  std::unique_ptr<TraceWriter> writer_ MYDIST_GUARDED_BY(mutex_);
  Status last_failure_ MYDIST_GUARDED_BY(mutex_);
  bool has_no_writer_ MYDIST_GUARDED_BY(mutex_) = false;  // It could not be opened.
};

}  // namespace mydist
