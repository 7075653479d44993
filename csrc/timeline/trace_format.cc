#include "timeline/trace_format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "base/call_name.h"

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
  Record(char phase, int rank, int thread, TraceRecords& records)
      : records_(records), text_(records.text()) {
    Add("{\"ph\":\"").Add({&phase, 1}).Add("\",\"pid\":").Add(rank).Add(",\"tid\":").Add(thread);
  }
  ~Record() {
    Add("}");
    records_.End();
  }
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

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
  Record& AddText(std::string_view text, size_t max_bytes) {
    AppendJsonText(text, max_bytes, text_);
    return *this;
  }

 private:
  TraceRecords& records_;
  std::string& text_;
};

void AddMetadata(int rank, int thread, std::string_view what, std::string_view args,
                 TraceRecords& records) {
  Record record('M', rank, thread, records);
  record.Add(",\"name\":\"").Add(what).Add("\",\"args\":{").Add(args).Add("}");
}

// "rank 3 (host)", or just "rank 3".
void AddProcess(int rank, const std::string& host, TraceRecords& records) {
  const std::string name = "rank " + std::to_string(rank) + (host.empty() ? "" : " (" + host + ")");
  AddMetadata(rank, 0, "process_name", "\"name\":" + JsonText(name, kMaxLaneBytes), records);
  AddMetadata(rank, 0, "process_sort_index", "\"sort_index\":" + std::to_string(rank), records);
}

char PhaseLetter(EventPhase phase) {
  constexpr std::array<char, kEventPhaseCount> kLetters = {'B', 'E', 'i', 'X'};
  return kLetters[static_cast<size_t>(phase)];
}

void AddEnd(int rank, int thread, int64_t time_ns, std::string_view name, TraceRecords& records) {
  Record record('E', rank, thread, records);
  record.Add(",\"ts\":").AddMicroseconds(time_ns);
  record.Add(",\"name\":").AddText(name, kMaxNameBytes);
}

}  // namespace

TraceFormat::TraceFormat(int size, int64_t start_ns)
    : start_ns_(start_ns), ranks_(static_cast<size_t>(std::max(size, 0))) {}

TraceRecords TraceFormat::Header(const std::vector<std::string>& hosts) const {
  TraceRecords records;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    AddProcess(static_cast<int>(r), r < hosts.size() ? hosts[r] : "", records);
  }
  return records;
}

TraceRecords TraceFormat::HeaderOf(int rank, const std::string& host) {
  TraceRecords records;
  AddProcess(rank, host, records);
  return records;
}

TraceFormat::Lane& TraceFormat::LaneOf(int rank, std::string_view name) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  const std::string kind = CallDigits(name).empty() ? "" : WithoutCallDigits(name);
  if (const auto it = state.lanes.find(name); it != state.lanes.end()) {
    if (!kind.empty()) state.idle[kind].erase(it->first);
    return it->second;
  }
  if (Lane* idle = kind.empty() ? nullptr : TakeIdle(state, kind, name)) return *idle;
  return NewLane(rank, name);
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

// Its metadata comes before all other records of the batch.
TraceFormat::Lane& TraceFormat::NewLane(int rank, std::string_view name) {
  auto& lanes = ranks_[static_cast<size_t>(rank)].lanes;
  if (lanes.size() + 1 >= kMaxLaneCount) name = kSharedLane;
  if (const auto it = lanes.find(name); it != lanes.end()) return it->second;
  Lane& lane = lanes[std::string(name)];
  lane.thread = static_cast<int>(lanes.size());  // From 1: viewers give thread 0 a special place.
  AddMetadata(rank, lane.thread, "thread_name",
              "\"name\":" + JsonText(WithoutCallDigits(name), kMaxLaneBytes), formatted_.records);
  // The engine's cycles on top, then the tensors in the order they were first seen.
  const int place = name == kCycleLane ? 0 : lane.thread;
  AddMetadata(rank, lane.thread, "thread_sort_index", "\"sort_index\":" + std::to_string(place),
              formatted_.records);
  return lane;
}

const TraceFormat::Formatted& TraceFormat::Format(int rank, std::span<const TimelineEvent> events,
                                                  int64_t clock_offset_ns) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  state.clock_offset_ns = clock_offset_ns;
  formatted_.records.Clear();
  std::vector<size_t>& needed = formatted_.records_needed;
  needed.clear();
  drafts_.clear();
  ++batch_;
  for (const TimelineEvent& event : events) {
    const int64_t time_ns = SinceStart(event.time_ns, clock_offset_ns, start_ns_);
    state.last_ns = std::max(state.last_ns, time_ns);
    const std::optional<size_t> draft = Note(rank, event, time_ns);
    needed.push_back(draft ? *draft + 1 : 0);
  }
  const size_t metadata_count = formatted_.records.size();
  for (size_t& count : needed) {
    if (count > 0) count += metadata_count;
  }
  PutIntoWords(rank);
  return formatted_;
}

std::optional<size_t> TraceFormat::Note(int rank, const TimelineEvent& event, int64_t time_ns) {
  Lane& lane = LaneOf(rank, event.lane);
  if (event.phase == EventPhase::kEnd) return NoteEnd(lane, event, time_ns);
  const size_t number = drafts_.size();
  if (event.phase == EventPhase::kBegin) {
    if (lane.open.size() >= kMaxDepth) return std::nullopt;
    lane.open.push_back({event.name, batch_, number});
  }
  const bool is_call = !CallDigits(event.lane).empty();
  // Which call it is its lane does not say.
  const bool tells_call = is_call && event.args.empty() && event.name == event_name::kEnqueue;
  drafts_.push_back({.phase = event.phase,
                     .thread = lane.thread,
                     .time_ns = time_ns,
                     .duration_ns = std::max<int64_t>(event.duration_ns, 0),
                     .name = event.name,
                     .detail = tells_call ? event.lane : event.args,
                     .ended_name = {}});
  if (is_call && event.name == event_name::kComplete) {
    Free(ranks_[static_cast<size_t>(rank)], event.lane, time_ns);
  }
  return number;
}

// What a call that failed has left open would be around the next one.
void TraceFormat::Free(Rank& rank, const std::string& name, int64_t time_ns) {
  const auto own = rank.lanes.find(name);
  if (own == rank.lanes.end()) return;  // It is on the shared one.
  while (!own->second.open.empty()) EndInnermost(own->second, time_ns);
  rank.idle[WithoutCallDigits(name)].insert(name);
}

std::optional<size_t> TraceFormat::NoteEnd(Lane& lane, const TimelineEvent& event,
                                           int64_t time_ns) {
  const auto is_it = [&](const Open& open) { return open.name == event.name; };
  if (std::none_of(lane.open.begin(), lane.open.end(), is_it)) return std::nullopt;
  while (!is_it(lane.open.back())) EndInnermost(lane, time_ns);
  return EndInnermost(lane, time_ns);
}

// Times of one batch have the same offset, so a duration is right whatever the clocks.
size_t TraceFormat::EndInnermost(Lane& lane, int64_t time_ns) {
  Open open = std::move(lane.open.back());
  lane.open.pop_back();
  if (open.batch == batch_) {
    Draft& draft = drafts_[open.draft];
    draft.phase = EventPhase::kComplete;
    draft.duration_ns = std::max<int64_t>(time_ns - draft.time_ns, 0);
    return open.draft;
  }
  drafts_.push_back({.phase = EventPhase::kEnd,
                     .thread = lane.thread,
                     .time_ns = time_ns,
                     .duration_ns = 0,
                     .name = {},
                     .detail = {},
                     .ended_name = std::move(open.name)});
  return drafts_.size() - 1;
}

void TraceFormat::PutIntoWords(int rank) {
  for (const Draft& draft : drafts_) {
    if (draft.phase == EventPhase::kEnd) {
      AddEnd(rank, draft.thread, draft.time_ns, draft.ended_name, formatted_.records);
      continue;
    }
    Record record(PhaseLetter(draft.phase), rank, draft.thread, formatted_.records);
    record.Add(",\"ts\":").AddMicroseconds(draft.time_ns);
    if (draft.phase == EventPhase::kInstant) record.Add(",\"s\":\"t\"");
    if (draft.phase == EventPhase::kComplete) {
      record.Add(",\"dur\":").AddMicroseconds(draft.duration_ns);
    }
    if (!draft.detail.empty()) {
      record.Add(",\"args\":{\"detail\":").AddText(draft.detail, kMaxArgsBytes).Add("}");
    }
    record.Add(",\"name\":").AddText(draft.name, kMaxNameBytes);
  }
}

TraceRecords TraceFormat::Footer(const std::vector<int64_t>& dropped_counts) {
  TraceRecords records;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (auto& [name, lane] : ranks_[r].lanes) {
      for (; !lane.open.empty(); lane.open.pop_back()) {
        AddEnd(rank, lane.thread, ranks_[r].last_ns, lane.open.back().name, records);
      }
    }
    const int64_t dropped = r < dropped_counts.size() ? dropped_counts[r] : 0;
    AddMetadata(rank, 0, "mydist_rank",
                "\"dropped_events\":" + std::to_string(dropped) +
                    ",\"clock_offset_ns\":" + std::to_string(ranks_[r].clock_offset_ns),
                records);
  }
  return records;
}

namespace {

constexpr std::string_view kReplacement = "\\ufffd";
constexpr std::string_view kEllipsis = "\\u2026";

// Bytes of the well-formed UTF-8 character at the front of `text`; 0 when there is none. Refuses
// overlong forms, surrogates and everything above U+10FFFF (RFC 3629, section 4).
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (first == 0xE0 && byte(1) < 0xA0) return 0;
    if (first == 0xED && byte(1) > 0x9F) return 0;
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (first == 0xF0 && byte(1) < 0x90) return 0;
    if (first == 0xF4 && byte(1) > 0x8F) return 0;
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

// Whether it stands for itself in a JSON string.
bool IsPlain(char c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; }

bool IsPlainAndFits(std::string_view text, size_t max_bytes) {
  return text.size() + 2 <= max_bytes && std::all_of(text.begin(), text.end(), IsPlain);
}

std::string Escaped(std::string_view character) {
  const auto byte = static_cast<uint8_t>(character[0]);
  if (byte == '"' || byte == '\\') return std::string("\\") + character[0];
  if (byte >= 0x20 && byte != 0x7F) return std::string(character);
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "\\u%04x", byte);
  return text.data();
}

}  // namespace

std::string JsonText(std::string_view text, size_t max_bytes) {
  std::string quoted = "\"";
  if (IsPlainAndFits(text, max_bytes)) return quoted.append(text).append("\"");
  // Room that must remain so that the ellipsis and the closing quote still fit.
  const size_t reserve_bytes = kEllipsis.size() + 1;
  size_t cut_bytes = quoted.size();  // Where to cut if the whole does not fit.
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    quoted += length == 0 ? std::string(kReplacement) : Escaped(text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
    if (quoted.size() + reserve_bytes <= max_bytes) cut_bytes = quoted.size();
    if (quoted.size() + 1 > max_bytes) {
      quoted.resize(cut_bytes);
      quoted += kEllipsis;
      break;
    }
  }
  return quoted + "\"";
}

void AppendJsonText(std::string_view text, size_t max_bytes, std::string& out) {
  if (IsPlainAndFits(text, max_bytes)) {  // As nearly all names are.
    out.append("\"").append(text).append("\"");
  } else {
    out += JsonText(text, max_bytes);
  }
}

}  // namespace mydist
