#include "timeline/trace_format.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/call_name.h"
#include "timeline/json_text.h"

namespace mydist {
namespace {

constexpr std::string_view kSharedLane = "(more)";
// Together with the numbers around them they stay below TraceFile::kMaxRecordBytes.
constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMaxArgsBytes = 2048;
constexpr size_t kMaxLaneBytes = 1024;

// Times come from peers and may be anything, so they are added as unsigned and cannot overflow.
int64_t SinceStart(int64_t time_ns, int64_t clock_offset_ns, int64_t start_ns) {
  const uint64_t since_ns = static_cast<uint64_t>(time_ns) +
                            static_cast<uint64_t>(clock_offset_ns) -
                            static_cast<uint64_t>(start_ns);
  return std::max<int64_t>(static_cast<int64_t>(since_ns), 0);
}

// A record as it is put together: hundreds of thousands a second may be, beside the training.
class Record {
 public:
  Record(char phase, int rank, int thread) {
    text_.reserve(kUsualBytes);
    Add("{\"ph\":\"").Add({&phase, 1}).Add("\",\"pid\":").Add(rank).Add(",\"tid\":").Add(thread);
  }

  Record& Add(std::string_view text) {
    text_ += text;
    return *this;
  }
  Record& Add(int64_t number) {
    std::array<char, 20> digits;
    const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
    return Add(std::string_view(digits.data(), static_cast<size_t>(end - digits.data())));
  }
  // `time_ns` >= 0.
  Record& AddMicroseconds(int64_t time_ns) {
    const auto rest = static_cast<int>(time_ns % 1000);
    const std::array<char, 4> fraction = {'.', static_cast<char>('0' + rest / 100),
                                          static_cast<char>('0' + rest / 10 % 10),
                                          static_cast<char>('0' + rest % 10)};
    return Add(time_ns / 1000).Add({fraction.data(), fraction.size()});
  }
  std::string Take() && { return std::move(text_); }

 private:
  static constexpr size_t kUsualBytes = 96;
  std::string text_;
};

std::string Metadata(int rank, int thread, std::string_view what, std::string_view args) {
  Record record('M', rank, thread);
  record.Add(",\"name\":\"").Add(what).Add("\",\"args\":{").Add(args).Add("}}");
  return std::move(record).Take();
}

std::string End(int rank, int thread, int64_t time_ns, std::string_view name) {
  Record record('E', rank, thread);
  record.Add(",\"ts\":").AddMicroseconds(time_ns);
  record.Add(",\"name\":").Add(JsonText(name, kMaxNameBytes)).Add("}");
  return std::move(record).Take();
}

char PhaseLetter(EventPhase phase) {
  if (phase == EventPhase::kInstant) return 'i';
  return phase == EventPhase::kComplete ? 'X' : 'B';
}

std::string Start(int rank, int thread, int64_t time_ns, const TimelineEvent& event,
                  std::string_view detail) {
  Record record(PhaseLetter(event.phase), rank, thread);
  record.Add(",\"ts\":").AddMicroseconds(time_ns);
  if (event.phase == EventPhase::kInstant) record.Add(",\"s\":\"t\"");
  if (event.phase == EventPhase::kComplete) {
    record.Add(",\"dur\":").AddMicroseconds(std::max<int64_t>(event.duration_ns, 0));
  }
  if (!detail.empty()) {
    record.Add(",\"args\":{\"detail\":").Add(JsonText(detail, kMaxArgsBytes)).Add("}");
  }
  record.Add(",\"name\":").Add(JsonText(event.name, kMaxNameBytes)).Add("}");
  return std::move(record).Take();
}

}  // namespace

TraceFormat::TraceFormat(int size, int64_t start_ns)
    : start_ns_(start_ns), ranks_(static_cast<size_t>(std::max(size, 0))) {}

std::vector<std::string> TraceFormat::Header(const std::vector<std::string>& hosts) const {
  std::vector<std::string> records;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const int rank = static_cast<int>(r);
    std::string name = "rank " + std::to_string(rank);
    if (r < hosts.size() && !hosts[r].empty()) name += " (" + hosts[r] + ")";
    records.push_back(
        Metadata(rank, 0, "process_name", "\"name\":" + JsonText(name, kMaxLaneBytes)));
    records.push_back(
        Metadata(rank, 0, "process_sort_index", "\"sort_index\":" + std::to_string(rank)));
  }
  return records;
}

TraceFormat::Lane& TraceFormat::LaneOf(int rank, std::string_view name,
                                       std::vector<std::string>& records) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  const std::string kind = CallDigits(name).empty() ? "" : WithoutCallDigits(name);
  if (const auto it = state.lanes.find(name); it != state.lanes.end()) {
    if (!kind.empty()) state.idle[kind].erase(it->first);
    return it->second;
  }
  if (Lane* idle = kind.empty() ? nullptr : TakeIdle(state, kind, name)) return *idle;
  return NewLane(rank, name, records);
}

TraceFormat::Lane* TraceFormat::TakeIdle(Rank& rank, const std::string& kind,
                                         std::string_view name) {
  std::set<std::string>& idle = rank.idle[kind];
  if (idle.empty()) return nullptr;
  auto lane = rank.lanes.extract(*idle.begin());
  idle.erase(idle.begin());
  lane.key() = name;
  return &rank.lanes.insert(std::move(lane)).position->second;
}

TraceFormat::Lane& TraceFormat::NewLane(int rank, std::string_view name,
                                        std::vector<std::string>& records) {
  auto& lanes = ranks_[static_cast<size_t>(rank)].lanes;
  if (lanes.size() + 1 >= kMaxLaneCount) name = kSharedLane;
  if (const auto it = lanes.find(name); it != lanes.end()) return it->second;
  Lane& lane = lanes[std::string(name)];
  lane.thread = static_cast<int>(lanes.size());  // From 1: viewers give thread 0 a special place.
  records.push_back(Metadata(rank, lane.thread, "thread_name",
                             "\"name\":" + JsonText(WithoutCallDigits(name), kMaxLaneBytes)));
  // The engine's cycles on top, then the tensors in the order they were first seen.
  const int place = name == kCycleLane ? 0 : lane.thread;
  records.push_back(
      Metadata(rank, lane.thread, "thread_sort_index", "\"sort_index\":" + std::to_string(place)));
  return lane;
}

void TraceFormat::Format(int rank, const TimelineEvent& event, int64_t clock_offset_ns,
                         std::vector<std::string>& records) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  const int64_t time_ns = SinceStart(event.time_ns, clock_offset_ns, start_ns_);
  state.last_ns = std::max(state.last_ns, time_ns);
  state.clock_offset_ns = clock_offset_ns;
  Lane& lane = LaneOf(rank, event.lane, records);
  if (event.phase == EventPhase::kEnd) return FormatEnd(rank, lane, event, time_ns, records);
  if (event.phase == EventPhase::kBegin) {
    if (lane.open_names.size() >= kMaxDepth) return;
    lane.open_names.push_back(event.name);
  }
  const bool is_call = !CallDigits(event.lane).empty();
  // Which call it is its lane does not say.
  const bool tells_call = is_call && event.args.empty() && event.name == event_name::kEnqueue;
  records.push_back(Start(rank, lane.thread, time_ns, event, tells_call ? event.lane : event.args));
  if (is_call && event.name == event_name::kComplete) Free(rank, event.lane, time_ns, records);
}

// What a call that failed has left open would be around the next one.
void TraceFormat::Free(int rank, const std::string& name, int64_t time_ns,
                       std::vector<std::string>& records) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  const auto own = state.lanes.find(name);
  if (own == state.lanes.end()) return;  // It is on the shared one.
  auto& [thread, open] = own->second;
  for (; !open.empty(); open.pop_back()) {
    records.push_back(End(rank, thread, time_ns, open.back()));
  }
  state.idle[WithoutCallDigits(name)].insert(name);
}

void TraceFormat::FormatEnd(int rank, Lane& lane, const TimelineEvent& event, int64_t time_ns,
                            std::vector<std::string>& records) {
  auto& open = lane.open_names;
  if (std::find(open.begin(), open.end(), event.name) == open.end()) return;
  for (bool is_ended = false; !is_ended; open.pop_back()) {
    is_ended = open.back() == event.name;
    records.push_back(End(rank, lane.thread, time_ns, open.back()));
  }
}

std::vector<std::string> TraceFormat::Footer(const std::vector<int64_t>& dropped_counts) {
  std::vector<std::string> records;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (auto& [name, lane] : ranks_[r].lanes) {
      for (; !lane.open_names.empty(); lane.open_names.pop_back()) {
        records.push_back(End(rank, lane.thread, ranks_[r].last_ns, lane.open_names.back()));
      }
    }
    const int64_t dropped = r < dropped_counts.size() ? dropped_counts[r] : 0;
    records.push_back(
        Metadata(rank, 0, "mydist_rank",
                 "\"dropped_events\":" + std::to_string(dropped) +
                     ",\"clock_offset_ns\":" + std::to_string(ranks_[r].clock_offset_ns)));
  }
  return records;
}

}  // namespace mydist
