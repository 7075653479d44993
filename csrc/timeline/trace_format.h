// TraceFormat: timeline events of all ranks as records of the Chrome trace format. Pure.
// Owned by the TraceWriter, used by its thread. Keeps each lane well formed whatever was dropped on
// the way: an end without its begin is left out, a begin without its end is ended with what is
// around it or when the trace ends. Calls without a name take turns on a few lanes: each has
// another name, and a lane of its own would be used once. That of one whose COMPLETE was
// dropped is lost; process sets are not told apart.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "timeline/event.h"

namespace mydist {

class TraceFormat {
 public:
  // More lanes of one rank share one lane, deeper begins are left out.
  static constexpr size_t kMaxLaneCount = size_t{64} << 10;
  static constexpr size_t kMaxDepth = 64;

  // `start_ns` on rank 0's clock becomes time 0.
  TraceFormat(int size, int64_t start_ns);

  // Names the ranks' processes: "rank 3 (host)"; just "rank 3" where hosts[3] is missing.
  std::vector<std::string> Header(const std::vector<std::string>& hosts) const;

  // Appends the records of one event of `rank` (in [0, size)): none, one or several.
  void Format(int rank, const TimelineEvent& event, int64_t clock_offset_ns,
              std::vector<std::string>& records);

  // Ends everything open, at the last time its rank was heard of, and tells per rank how many
  // events were dropped and the clock offset used last.
  std::vector<std::string> Footer(const std::vector<int64_t>& dropped_counts);

 private:
  struct Lane {
    int thread = 0;
    std::vector<std::string> open_names;
  };
  struct Rank {
    std::map<std::string, Lane, std::less<>> lanes;  // By tensor.
    // Of calls without a name that are complete, by what such names have in common.
    std::map<std::string, std::set<std::string>> idle;
    int64_t last_ns = 0;  // Relative to the start.
    int64_t clock_offset_ns = 0;
  };

  Lane& LaneOf(int rank, std::string_view name, std::vector<std::string>& records);
  Lane& NewLane(int rank, std::string_view name, std::vector<std::string>& records);
  // A lane whose call is complete, for the next one of its kind; null: there is none.
  static Lane* TakeIdle(Rank& rank, const std::string& kind, std::string_view name);
  // The lane of a call without a name that is complete.
  void Free(int rank, const std::string& name, int64_t time_ns, std::vector<std::string>& records);
  void FormatEnd(int rank, Lane& lane, const TimelineEvent& event, int64_t time_ns,
                 std::vector<std::string>& records);

  int64_t start_ns_;
  std::vector<Rank> ranks_;
};

}  // namespace mydist
