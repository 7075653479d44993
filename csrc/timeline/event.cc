#include "timeline/event.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

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

// Returns the place behind it.
template <typename T>
uint8_t* PutNumber(T value, uint8_t* place) {
  const auto bits = static_cast<uint64_t>(value);
  for (size_t i = 0; i < sizeof(T); ++i) *place++ = static_cast<uint8_t>(bits >> (8 * i));
  return place;
}

template <typename T>
void AppendNumber(T value, std::vector<uint8_t>& out) {
  const size_t start = out.size();
  out.resize(start + sizeof(T));
  PutNumber(value, out.data() + start);
}

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

void AppendEvent(const TimelineEvent& event, TextTable& texts, std::vector<uint8_t>& out) {
  const size_t start = out.size();
  out.resize(start + kEventBytes);
  uint8_t* place = PutNumber(event.time_ns, out.data() + start);
  place = PutNumber(event.duration_ns, place);
  place = PutNumber(static_cast<uint8_t>(event.phase), place);
  for (const std::string* text : {&event.lane, &event.name, &event.args}) {
    place = PutNumber(texts.NumberOf(*text), place);
  }
}

// Reads numbers and texts until the bytes end; after that every read gives zero and ok() is false.
class Reader {
 public:
  explicit Reader(const std::vector<uint8_t>& bytes) : bytes_(bytes) {}

  template <typename T>
  T Number() {
    if (!Has(sizeof(T))) return T{};
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      bits |= static_cast<uint64_t>(bytes_[position_ + i]) << (8 * i);
    }
    position_ += sizeof(T);
    return static_cast<T>(bits);
  }

  std::string Text(size_t length) {
    if (!Has(length)) return {};
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(position_);
    position_ += length;
    return {begin, begin + static_cast<std::ptrdiff_t>(length)};
  }

  bool ok() const { return ok_; }
  size_t position() const { return position_; }
  size_t remaining_bytes() const { return bytes_.size() - position_; }

 private:
  bool Has(size_t count_bytes) {
    ok_ = ok_ && count_bytes <= remaining_bytes();
    return ok_;
  }

  const std::vector<uint8_t>& bytes_;
  size_t position_ = 0;
  bool ok_ = true;
};

Status Malformed(const Reader& reader, const std::string& what) {
  return Status::Internal("a block of timeline events is malformed at byte " +
                          std::to_string(reader.position()) + ": " + what +
                          "; do all ranks run the same version of mydist?");
}

Result<std::vector<std::string>> ReadTexts(Reader& reader) {
  const auto count = reader.Number<uint32_t>();
  if (count > reader.remaining_bytes() / kTextHeaderBytes) {
    return Malformed(reader,
                     "it announces " + std::to_string(count) + " texts, more than fit in it");
  }
  std::vector<std::string> texts;
  texts.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const auto length = reader.Number<uint32_t>();
    if (length > kMaxEventTextBytes) {
      return Malformed(reader, "a text of " + std::to_string(length) + " bytes, expected at most " +
                                   std::to_string(kMaxEventTextBytes));
    }
    texts.push_back(reader.Text(length));
  }
  return texts;
}

Result<TimelineEvent> ReadEvent(Reader& reader, const std::vector<std::string>& texts) {
  TimelineEvent event;
  event.time_ns = reader.Number<int64_t>();
  event.duration_ns = reader.Number<int64_t>();
  const auto phase = reader.Number<uint8_t>();
  if (phase >= kEventPhaseCount) {
    return Malformed(reader, "event phase " + std::to_string(phase) + ", expected 0 to 3");
  }
  event.phase = static_cast<EventPhase>(phase);
  for (std::string* field : {&event.lane, &event.name, &event.args}) {
    const auto number = reader.Number<uint32_t>();
    if (number >= texts.size()) {
      return Malformed(
          reader, "text number " + std::to_string(number) + " of " + std::to_string(texts.size()));
    }
    *field = texts[number];
  }
  return event;
}

}  // namespace

std::vector<uint8_t> EncodeEvents(const EventBlock& block) {
  TextTable texts;
  std::vector<uint8_t> events;
  events.reserve(std::min(block.events.size(), kMaxBlockEventCount) * kEventBytes);
  size_t count = 0;
  for (const TimelineEvent& event : block.events) {
    const size_t longest_bytes = kEventBytes + 3 * (kTextHeaderBytes + kMaxEventTextBytes);
    const size_t used_bytes = kHeaderBytes + texts.size_bytes() + events.size();
    if (count == kMaxBlockEventCount || used_bytes + longest_bytes > kMaxEventBlockBytes) break;
    AppendEvent(event, texts, events);
    ++count;
  }
  std::vector<uint8_t> bytes;
  bytes.reserve(kHeaderBytes + texts.size_bytes() + events.size());
  AppendNumber(kMagic, bytes);
  AppendNumber(block.sent_ns, bytes);
  AppendNumber(block.dropped_count + static_cast<int64_t>(block.events.size() - count), bytes);
  AppendNumber(static_cast<uint32_t>(texts.texts().size()), bytes);
  for (const std::string_view text : texts.texts()) {
    AppendNumber(static_cast<uint32_t>(text.size()), bytes);
    bytes.insert(bytes.end(), text.begin(), text.end());
  }
  AppendNumber(static_cast<uint32_t>(count), bytes);
  bytes.insert(bytes.end(), events.begin(), events.end());
  return bytes;
}

Result<EventBlock> DecodeEvents(const std::vector<uint8_t>& bytes) {
  Reader reader(bytes);
  if (reader.Number<uint32_t>() != kMagic) return Malformed(reader, "its first bytes are wrong");
  EventBlock block;
  block.sent_ns = reader.Number<int64_t>();
  block.dropped_count = reader.Number<int64_t>();
  if (block.dropped_count < 0) return Malformed(reader, "a negative drop count");
  MYDIST_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadTexts(reader));
  const auto count = reader.Number<uint32_t>();
  if (count > kMaxBlockEventCount || count * kEventBytes != reader.remaining_bytes()) {
    return Malformed(reader, "it announces " + std::to_string(count) + " events, but " +
                                 std::to_string(reader.remaining_bytes()) + " bytes follow");
  }
  if (!reader.ok()) return Malformed(reader, "it ends too early");
  block.events.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    MYDIST_ASSIGN_OR_RETURN(TimelineEvent event, ReadEvent(reader, texts));
    block.events.push_back(std::move(event));
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

void Timeline::Record(EventPhase phase, std::string_view lane, std::string_view name,
                      std::string_view args) {
  if (!enabled()) return;
  TimelineEvent event;
  event.phase = phase;
  event.lane = lane;
  event.name = name;
  event.args = args;
  MutexLock lock(mutex_);
  // The time is taken inside the lock, so that the order of recording is the order of time.
  const TimePoint now = Now();
  event.time_ns = ToNanoseconds(now);
  if (!enabled()) return;  // Stopped since the caller looked.
  if (events_.size() >= capacity_) {
    ++dropped_count_;
    return;
  }
  if (events_.empty()) {
    oldest_ = now;
    events_.reserve(usual_count_);
  }
  events_.push_back(std::move(event));
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
