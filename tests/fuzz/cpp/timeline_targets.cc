// Events of the timeline: those of a peer, and all of them as JSON.
#include <algorithm>
#include <string>

#include "target.h"
#include "timeline/event.h"
#include "timeline/json_value.h"
#include "timeline/trace_format.h"
#include "timeline/trace_writer.h"

namespace mydist::fuzz {
namespace {

using testing::JsonValue;
using testing::ParseJson;

void Events(std::span<const uint8_t> input) {
  const Result<EventBlock> block = DecodeEvents({input.begin(), input.end()});
  if (!block.ok()) return;
  const Result<EventBlock> again = DecodeEvents(EncodeEvents(*block));
  FUZZ_EXPECT(again.ok());
  FUZZ_EXPECT(*again == *block);
}

EventBlock SomeBlock() {
  return {.sent_ns = 5'000,
          .dropped_count = 2,
          .events = {{1'000, 0, EventPhase::kBegin, "w", "NEGOTIATE", ""},
                     {2'000, 0, EventPhase::kInstant, "w", "\"\\\xff", "a\n"},
                     {3'000, 0, EventPhase::kEnd, "w", "NEGOTIATE", ""},
                     {3'500, 7, EventPhase::kComplete, "allreduce.noname.3", "COMPLETE", "x"},
                     {4'000, 0, EventPhase::kBegin, "cycle", "CYCLE", ""}}};
}

std::vector<Bytes> EventsSeeds() {
  return {EncodeEvents(SomeBlock()),
          EncodeEvents({.sent_ns = 1, .dropped_count = 0, .events = {}})};
}

// A time that begins before it ends, and depth, by thread of a process.
void ExpectRecords(const TraceRecords& records) {
  for (size_t i = 0; i < records.size(); ++i) {
    FUZZ_EXPECT(records[i].size() <= TraceFile::kMaxRecordBytes);
    const std::optional<JsonValue> record = ParseJson(records[i]);
    FUZZ_EXPECT(record.has_value());
    FUZZ_EXPECT(record->kind == JsonValue::Kind::kObject);
    FUZZ_EXPECT((*record)["ph"].kind == JsonValue::Kind::kText);
    FUZZ_EXPECT((*record)["name"].kind == JsonValue::Kind::kText);
  }
}

// Blocks of two ranks, in turns; the first bytes are where their clocks begin.
void Trace(std::span<const uint8_t> bytes) {
  Input input(bytes);
  const int64_t start_ns = input.Int64();
  const int64_t offset_ns = input.Int64();
  TraceFormat format(2, start_ns);
  ExpectRecords(format.Header({ToText(bytes.first(std::min<size_t>(bytes.size(), 9)))}));
  for (int rank = 0; !input.empty(); rank = 1 - rank) {
    const Result<EventBlock> block = DecodeEvents(input.Block());
    if (!block.ok()) continue;
    const TraceFormat::Formatted& formatted = format.Format(rank, block->events, offset_ns);
    FUZZ_EXPECT(formatted.records_needed.size() == block->events.size());
    for (const size_t needed : formatted.records_needed) {
      FUZZ_EXPECT(needed <= formatted.records.size());
    }
    ExpectRecords(formatted.records);
  }
  ExpectRecords(format.Footer({1}));
}

std::vector<Bytes> TraceSeeds() {
  Bytes block = EncodeEvents(SomeBlock());
  const auto size = static_cast<uint16_t>(block.size());
  block.insert(block.begin(), {static_cast<uint8_t>(size), static_cast<uint8_t>(size >> 8)});
  Bytes two(16, 0);
  for (int i = 0; i < 2; ++i) two.insert(two.end(), block.begin(), block.end());
  return {two};
}

void Text(std::span<const uint8_t> bytes) {
  Input input(bytes);
  const size_t max_bytes = 16 + size_t{input.Byte()};
  const std::string text = ToText(input.Rest());
  const std::string quoted = JsonText(text, max_bytes);
  FUZZ_EXPECT(quoted.size() <= max_bytes);
  const std::optional<JsonValue> value = ParseJson(quoted);
  FUZZ_EXPECT(value.has_value());
  FUZZ_EXPECT(value->kind == JsonValue::Kind::kText);
  std::string appended = "x";
  AppendJsonText(text, max_bytes, appended);
  FUZZ_EXPECT(appended == "x" + quoted);
  // What is no UTF-8, or is cut, is replaced, once and for all.
  const std::optional<JsonValue> whole = ParseJson(JsonText(text, 8 * text.size() + 16));
  FUZZ_EXPECT(whole.has_value());
  const std::optional<JsonValue> again = ParseJson(JsonText(whole->text, 8 * text.size() + 64));
  FUZZ_EXPECT(again.has_value() && again->text == whole->text);
}

std::vector<Bytes> TextSeeds() {
  return {ToBytes("\xff"
                  "layer1.weight"),
          ToBytes("\x10"
                  "a\"b\\c\n\x7f\x01\xc3\xa4"),
          ToBytes("\x05"
                  "\xf0\x9f\x98\x80 and a name that does not fit"),
          ToBytes("\xff"
                  "\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80")};
}

}  // namespace

std::vector<Target> TimelineTargets() {
  return {{"events", Events, EventsSeeds},
          {"trace", Trace, TraceSeeds},
          {"json_text", Text, TextSeeds}};
}

}  // namespace mydist::fuzz
