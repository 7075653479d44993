#include "timeline/event.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/bytes.h"

// Layout, little-endian: magic u32, sent_ns i64, dropped_count i64,
// text count u32, then per text: length u32, bytes;
// event count u32, then per event: time_ns i64, duration_ns i64, phase u8, and the numbers of its
// lane, name and args among the texts, u32 each.

namespace mydist {
namespace {

constexpr uint32_t kMagic = 0x3145544d;  // "MTE1"
constexpr size_t kHeaderBytes = 4 + 8 + 8 + 4 + 4;
constexpr size_t kTextHeaderBytes = 4;
constexpr size_t kEventBytes = 8 + 8 + 1 + 3 * 4;

// The texts of a block, each once. Views into the block being encoded.
class TextTable {
 public:
  uint32_t NumberOf(std::string_view text) {
    if (text.empty() && no_text_) return *no_text_;  // As the args of most are.
    text = text.substr(0, kMaxEventTextBytes);
    const auto [it, is_new] = numbers_.try_emplace(text, static_cast<uint32_t>(texts_.size()));
    if (is_new) {
      texts_.push_back(text);
      size_bytes_ += kTextHeaderBytes + text.size();
      if (text.empty()) no_text_ = it->second;
    }
    return it->second;
  }
  const std::vector<std::string_view>& texts() const { return texts_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  std::unordered_map<std::string_view, uint32_t> numbers_;
  std::optional<uint32_t> no_text_;  // Of the empty one.
  std::vector<std::string_view> texts_;
  size_t size_bytes_ = 0;
};

void WriteEvent(const TimelineEvent& event, TextTable& texts, ByteWriter& writer) {
  writer.I64(event.time_ns);
  writer.I64(event.duration_ns);
  writer.U8(static_cast<uint8_t>(event.phase));
  for (const std::string* text : {&event.lane, &event.name, &event.args}) {
    writer.U32(texts.NumberOf(*text));
  }
}

TimelineEvent ReadEvent(ByteReader& reader, const std::vector<std::string>& texts) {
  TimelineEvent event;
  event.time_ns = reader.I64();
  event.duration_ns = reader.I64();
  const uint8_t phase = reader.U8();
  if (phase >= kEventPhaseCount) {
    reader.Fail("event phase " + std::to_string(phase) + ", expected 0 to 3");
  }
  event.phase = static_cast<EventPhase>(phase);
  for (std::string* field : {&event.lane, &event.name, &event.args}) {
    const uint32_t number = reader.U32();
    if (number < texts.size()) {
      *field = texts[number];
    } else {
      reader.Fail("text number " + std::to_string(number) + " of " + std::to_string(texts.size()));
    }
  }
  return event;
}

}  // namespace

std::vector<uint8_t> EncodeEvents(const EventBlock& block) {
  TextTable texts;
  ByteWriter events;
  events.Reserve(std::min(block.events.size(), kMaxBlockEventCount) * kEventBytes);
  size_t count = 0;
  for (const TimelineEvent& event : block.events) {
    const size_t longest_bytes = kEventBytes + 3 * (kTextHeaderBytes + kMaxEventTextBytes);
    const size_t used_bytes = kHeaderBytes + texts.size_bytes() + events.size();
    if (count == kMaxBlockEventCount || used_bytes + longest_bytes > kMaxEventBlockBytes) break;
    WriteEvent(event, texts, events);
    ++count;
  }
  ByteWriter writer;
  writer.Reserve(kHeaderBytes + texts.size_bytes() + events.size());
  writer.U32(kMagic);
  writer.I64(block.sent_ns);
  writer.I64(block.dropped_count + static_cast<int64_t>(block.events.size() - count));
  writer.Count(texts.texts().size());
  for (const std::string_view text : texts.texts()) writer.String(text, kMaxEventTextBytes);
  writer.Count(count);
  writer.Raw(std::move(events).Take());
  return std::move(writer).Take();
}

Result<EventBlock> DecodeEvents(const std::vector<uint8_t>& bytes) {
  ByteReader reader(bytes, "block of timeline events");
  if (reader.U32() != kMagic) reader.Fail("its first bytes are wrong");
  EventBlock block;
  block.sent_ns = reader.I64();
  block.dropped_count = reader.I64();
  if (block.dropped_count < 0) reader.Fail("a negative drop count");
  std::vector<std::string> texts(reader.Count(kTextHeaderBytes));
  for (std::string& text : texts) text = reader.String(kMaxEventTextBytes);
  const size_t count = reader.Count(kEventBytes);
  if (count > kMaxBlockEventCount) reader.Fail(std::to_string(count) + " events");
  block.events.reserve(reader.ok() ? count : 0);
  for (size_t i = 0; i < count && reader.ok(); ++i) {
    block.events.push_back(ReadEvent(reader, texts));
  }
  if (const Status read = reader.Finish(); !read.ok()) {
    return Status(read.code(), read.message() + "; do all ranks run the same version of mydist?");
  }
  return block;
}

void Timeline::Start(bool mark_cycles) {
  MutexLock lock(mutex_);
  if (!enabled()) {
    events_.clear();
    dropped_count_ = 0;
  }
  enabled_.store(true, std::memory_order_relaxed);
  mark_cycles_.store(mark_cycles, std::memory_order_relaxed);
}

void Timeline::Stop() {
  MutexLock lock(mutex_);
  enabled_.store(false, std::memory_order_relaxed);
  mark_cycles_.store(false, std::memory_order_relaxed);
}

bool Timeline::Record(EventPhase phase, std::string_view lane, std::string_view name,
                      std::string_view args) {
  if (!enabled()) return false;
  TimelineEvent event{.phase = phase};
  event.lane = lane;
  event.name = name;
  event.args = args;
  MutexLock lock(mutex_);
  // The time is taken inside the lock, so that the order of recording is the order of time.
  const TimePoint now = Now();
  event.time_ns = ToNanoseconds(now);
  return Add(std::move(event), now);
}

void Timeline::RecordSpan(std::string_view lane, std::string_view name, TimePoint begin,
                          Duration duration, std::string_view args) {
  if (!enabled()) return;
  TimelineEvent event{.time_ns = ToNanoseconds(begin), .phase = EventPhase::kComplete};
  event.duration_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  event.lane = lane;
  event.name = name;
  event.args = args;
  MutexLock lock(mutex_);
  Add(std::move(event), Now());
}

bool Timeline::Add(TimelineEvent event, TimePoint now) {
  if (!enabled()) return false;  // Stopped since the caller looked.
  if (events_.size() >= capacity_) {
    ++dropped_count_;
    return false;
  }
  const bool is_first = events_.empty();
  if (is_first) {
    oldest_ = now;
    events_.reserve(usual_count_);
  }
  events_.push_back(std::move(event));
  return is_first;
}

std::vector<TimelineEvent> Timeline::Drain() {
  std::vector<TimelineEvent> drained;
  MutexLock lock(mutex_);
  drained.swap(events_);
  usual_count_ = drained.size();
  return drained;
}

std::optional<TimePoint> Timeline::NextFlush() {
  if (!enabled()) return std::nullopt;
  MutexLock lock(mutex_);
  if (events_.empty()) return std::nullopt;
  if (events_.size() >= capacity_ - capacity_ / 2) return oldest_;
  return oldest_ + kFlushInterval;
}

int64_t Timeline::dropped_count() {
  MutexLock lock(mutex_);
  return dropped_count_;
}

}  // namespace mydist
