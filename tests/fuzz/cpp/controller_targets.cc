// Control messages: whatever decodes is written as bytes that decode to the same.
#include <algorithm>
#include <string>
#include <utility>

#include "controller/messages/stall_text.h"
#include "controller/messages/wire.h"
#include "target.h"

namespace mydist::fuzz {
namespace {

// NaN is not equal to itself, so requests are compared as bytes.
Bytes BytesOf(const Request& request) {
  Writer writer(MessageKind::kReport);
  WriteRequest(writer, request);
  return std::move(writer).Take();
}

bool IsSame(const Readiness& a, const Readiness& b) {
  const auto is_same_variant = [](const Variant& x, const Variant& y) {
    return BytesOf(x.request) == BytesOf(y.request) && x.ranks == y.ranks;
  };
  return std::equal(a.variants.begin(), a.variants.end(), b.variants.begin(), b.variants.end(),
                    is_same_variant) &&
         a.first_dims == b.first_dims && a.unlisted_rank_count == b.unlisted_rank_count;
}

bool IsSame(const StallNote& a, const StallNote& b) {
  return BytesOf(a.request) == BytesOf(b.request) && a.missing == b.missing && a.waited == b.waited;
}

bool IsSame(const Departure& a, const Departure& b) {
  return a.rank == b.rank && a.reason == b.reason;
}

bool IsSame(const TimelineControl& a, const TimelineControl& b) {
  return a.start == b.start && a.mark_cycles == b.mark_cycles;
}

template <typename T>
bool AreSame(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& x, const T& y) { return IsSame(x, y); });
}

bool IsSame(const SetReport& a, const SetReport& b) {
  return a.ready_slots == b.ready_slots && a.invalid_slots == b.invalid_slots &&
         AreSame(a.ready_requests, b.ready_requests) && AreSame(a.stalls, b.stalls);
}

bool IsSame(const Report& a, const Report& b) {
  return a.stream_position == b.stream_position && a.joins == b.joins && a.thaws == b.thaws &&
         AreSame(a.departures, b.departures) && AreSame(a.timeline, b.timeline) &&
         std::equal(a.sets.begin(), a.sets.end(), b.sets.begin(), b.sets.end(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && IsSame(x.second, y.second);
                    });
}

// What a vertex does with a readiness from its child, apart from the state of the job.
void Judge(const Readiness& readiness) {
  const Lane lane{1, {1, 2, 5}};
  if (!CheckReadiness(readiness, lane, readiness.request().process_set).ok()) return;
  if (!readiness.agreed()) MismatchText(readiness, {"a", "b", "c", "d", "e", "f"});
  const Readiness own = MakeReadiness(readiness.request());
  const std::vector<int32_t> self = {0};
  const std::vector<ReadinessPart> parts = {{&own, &self, self}, {&readiness, &lane.ranks, {}}};
  const Readiness merged = MergeReadiness(parts);
  FUZZ_EXPECT(!merged.variants.empty() && merged.variants.size() <= kMaxVariants);
  for (int i = 0; i < kRequestPropertyCount; ++i) {
    RequestPropertyText(static_cast<RequestProperty>(i), readiness.request());
  }
}

void ReportMessage(std::span<const uint8_t> bytes) {
  const Result<Report> report = DecodeReport(bytes);
  if (!report.ok()) return;
  Report expected = *report;
  // A set of which nothing is told is not sent.
  std::erase_if(expected.sets, [](const auto& set) { return set.second.empty(); });
  const std::vector<Bytes> messages = EncodeReport(expected);
  FUZZ_EXPECT(messages.size() == 1);
  const Result<Report> again = DecodeReport(messages[0]);
  FUZZ_EXPECT(again.ok());
  FUZZ_EXPECT(IsSame(*again, expected));
  for (const auto& [number, set] : report->sets) {
    for (const Readiness& readiness : set.ready_requests) Judge(readiness);
  }
}

Request SomeRequest(const std::string& name, OpKind op = OpKind::kAllreduce) {
  Request request;
  request.name = name;
  request.op = op;
  request.shape = Shape({3, 7});
  return request;
}

std::vector<Bytes> ReportSeeds() {
  Report report;
  report.stream_position = 7;
  report.sets[0].ready_slots = {7, 8, 15};
  report.sets[0].invalid_slots = {3};
  report.joins = {1};
  report.departures.push_back({2, "shutdown"});
  report.timeline = {{true, false}};
  report.thaws = {{1, true, false}};
  Report readiness;
  readiness.sets[0].ready_requests.push_back({{{SomeRequest("a"), {}}}, {}, 0});
  Report rows;
  rows.sets[0].ready_requests.push_back(
      {{{SomeRequest("r", OpKind::kAllgather), {}}}, {1, 0, 9}, 0});
  Report mismatch;
  Request other = SomeRequest("b");
  other.dtype = DataType::kInt8;
  other.group = "g";
  other.group_size = 2;
  mismatch.sets[3].ready_requests.push_back({{{SomeRequest("b"), {1}}, {other, {2, 5}}}, {}, 0});
  mismatch.sets[3].stalls.push_back({SomeRequest("c"), {2}, std::chrono::seconds(10)});
  std::vector<Bytes> seeds;
  for (const Report& each : {report, readiness, rows, mismatch}) {
    seeds.push_back(EncodeReport(each).front());
  }
  return seeds;
}

void SegmentMessage(std::span<const uint8_t> bytes) {
  const Result<StreamSegment> segment = DecodeSegment(bytes);
  if (!segment.ok()) return;
  const std::vector<Bytes> messages = EncodeSegment(*segment);
  FUZZ_EXPECT(messages.size() == 1);
  FUZZ_EXPECT(std::ranges::equal(messages[0], bytes));
}

std::vector<Bytes> SegmentSeeds() {
  StreamSegment segment{.start = 3, .items = {}};
  for (int kind = 0; kind < kStreamKindCount; ++kind) {
    StreamItem& item = segment.items.emplace_back();
    item.kind = static_cast<StreamKind>(kind);
    item.slot = 1;
    item.code = StatusCode::kMismatch;
    item.name = "a";
    item.text = "why";
    item.groups = {"g"};
    item.ranks = {0, 1};
    item.missing = {1};
    item.rank = 1;
    item.frozen = {.length = 1, .repeats = 2, .hash = 3};
    item.agreement = std::make_shared<const Agreement>(
        Agreement{SomeRequest("a", OpKind::kAllgather), {1, 2, 3}});
  }
  std::vector<Bytes> seeds = EncodeSegment(segment);
  for (const StreamItem& item : segment.items) {
    seeds.push_back(EncodeSegment({.start = 0, .items = {item, {}}}).front());
  }
  return seeds;
}

template <typename T>
void ExpectSurvives(const Result<T>& decoded, Bytes (*encode)(const T&),
                    std::span<const uint8_t> bytes) {
  if (decoded.ok()) FUZZ_EXPECT(std::ranges::equal(encode(*decoded), bytes));
}

// Those of a few fields.
void OtherMessage(std::span<const uint8_t> bytes) {
  const Result<MessageKind> kind = PeekKind(bytes);
  if (!kind.ok()) return;
  ExpectSurvives(DecodeVote(bytes), EncodeVote, bytes);
  ExpectSurvives(DecodeFarewell(bytes), EncodeFarewell, bytes);
  ExpectSurvives(DecodeQuestion(bytes), EncodeQuestion, bytes);
  ExpectSurvives(DecodeAnswer(bytes), EncodeAnswer, bytes);
}

std::vector<Bytes> OtherSeeds() {
  const RankProgress last = {.rank = 1, .operation = "allreduce", .tensor = "a", .number = 7};
  return {EncodeVote({3, 17, true}), EncodeFarewell({true, "2\nthe disk is full"}),
          EncodeFarewell({false, "1\nit died", {last, {.rank = 2}}}), EncodeQuestion({4, 0, "a"}),
          EncodeAnswer({4, {1, 2}})};
}

}  // namespace

std::vector<Target> ControllerTargets() {
  return {{"report", ReportMessage, ReportSeeds},
          {"segment", SegmentMessage, SegmentSeeds},
          {"other_message", OtherMessage, OtherSeeds}};
}

}  // namespace mydist::fuzz
