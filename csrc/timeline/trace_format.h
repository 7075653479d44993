// TraceFormat: timeline events of all ranks as records of the Chrome trace format. Pure.
// Owned by the TraceWriter, used by its thread. Keeps each lane well formed whatever was dropped on
// the way: an end without its begin is left out, a begin without its end is ended with what is
// around it or when the trace ends. Calls without a name take turns on a few lanes: each has
// another name, and a lane of its own would be used once. That of one whose COMPLETE was
// dropped is lost; process sets are not told apart.
// What begins and ends within the same events is one record, half as much to write as two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "timeline/event.h"

namespace mydist {

// TraceRecords: JSON texts one after the other in one piece of memory. Pure data.
// Filled by the TraceFormat, written by the TraceFile; kept between uses for its memory.

class TraceRecords {
 public:
  TraceRecords() = default;
  TraceRecords(std::initializer_list<std::string_view> records) {
    for (const std::string_view record : records) Add(record);
  }

  void Add(std::string_view record) {
    text_ += record;
    End();
  }
  // A record in pieces: appended here, then ended.
  std::string& text() { return text_; }
  void End() { ends_.push_back(text_.size()); }

  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }
  void Clear() {
    text_.clear();
    ends_.clear();
  }

 private:
  std::string text_;
  std::vector<size_t> ends_;  // Of each record, in text_.
};

class TraceFormat {
 public:
  // More lanes of one rank share one lane, deeper begins are left out.
  static constexpr size_t kMaxLaneCount = size_t{64} << 10;
  static constexpr size_t kMaxDepth = 64;

  // `start_ns` on rank 0's clock becomes time 0.
  TraceFormat(int size, int64_t start_ns);

  // Names the ranks' processes: "rank 3 (host)"; just "rank 3" where hosts[3] is missing.
  TraceRecords Header(const std::vector<std::string>& hosts) const;
  // The same of one rank.
  static TraceRecords HeaderOf(int rank, const std::string& host);

  // The records of events of `rank` (in [0, size)); good until the next call.
  struct Formatted {
    TraceRecords records;
    std::vector<size_t> records_needed;  // By event: it is written when so many records are.
  };
  const Formatted& Format(int rank, std::span<const TimelineEvent> events, int64_t clock_offset_ns);

  // Ends everything open, at the last time its rank was heard of, and tells per rank how many
  // events were dropped and the clock offset used last.
  TraceRecords Footer(const std::vector<int64_t>& dropped_counts);

 private:
  // A record that is still to be put into words.
  struct Draft {
    EventPhase phase = EventPhase::kInstant;
    int thread = 0;
    int64_t time_ns = 0;
    int64_t duration_ns = 0;
    std::string_view name;    // Of the event, …
    std::string_view detail;  // … and what it tells.
    std::string ended_name;   // Of kEnd, in place of `name`: of an event that is long gone.
  };
  struct Open {
    std::string name;
    int64_t batch = 0;  // The call of Format in which it began, …
    size_t draft = 0;   // … and its draft there.
  };
  struct Lane {
    int thread = 0;
    std::vector<Open> open;
  };
  struct Rank {
    std::map<std::string, Lane, std::less<>> lanes;  // By tensor.
    // Of calls without a name that are complete, by what such names have in common.
    std::map<std::string, std::set<std::string>> idle;
    int64_t last_ns = 0;  // Relative to the start.
    int64_t clock_offset_ns = 0;
  };

  Lane& LaneOf(int rank, std::string_view name);
  Lane& NewLane(int rank, std::string_view name);
  // A lane whose call is complete, for the next one of its kind; null: there is none.
  static Lane* TakeIdle(Rank& rank, const std::string& kind, std::string_view name);
  // The draft in which the event shows, if it does.
  std::optional<size_t> Note(int rank, const TimelineEvent& event, int64_t time_ns);
  std::optional<size_t> NoteEnd(Lane& lane, const TimelineEvent& event, int64_t time_ns);
  // Ends the innermost open event of the lane.
  size_t EndInnermost(Lane& lane, int64_t time_ns);
  // The lane of a call without a name that is complete.
  void Free(Rank& rank, const std::string& name, int64_t time_ns);
  void PutIntoWords(int rank);

  int64_t start_ns_;
  std::vector<Rank> ranks_;
  int64_t batch_ = 0;
  std::vector<Draft> drafts_;  // Of this batch.
  Formatted formatted_;
};

// JsonText: any bytes as a JSON string. Pure.

// The text in quotes, ASCII only in what is escaped: quotes, backslashes and control characters
// are escaped, bytes that are not UTF-8 become U+FFFD. A text that would take more than
// `max_bytes` (at least 16) is cut between characters and ends in U+2026, an ellipsis.
std::string JsonText(std::string_view text, size_t max_bytes = 1024);
// The same at the end of `out`.
void AppendJsonText(std::string_view text, size_t max_bytes, std::string& out);

}  // namespace mydist
