#include "controller/messages/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "conformance/status_checks.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;

Request SomeRequest(const std::string& name) {
  Request request;
  request.name = name;
  request.op = OpKind::kReducescatter;
  request.dtype = DataType::kComplex64;
  request.shape = Shape({3, 0, 7});
  request.reduce_op = ReduceOp::kProduct;
  request.root_rank = 5;
  request.prescale = -0.25;
  request.postscale = std::numeric_limits<double>::infinity();
  request.process_set = 0;
  request.device = 3;
  request.group = "g'\n";
  request.group_size = 9;
  request.ranks = {2, 8};
  request.values = InputValues::kInfinite;
  return request;
}

Report SomeReport() {
  Report report;
  report.number = 0xfedcba98;
  report.stream_position = 0x123456789abcdef0;
  report.sets[0].ready_slots = {7, 8, 15, 16, 1000};
  report.sets[0].invalid_slots = {3, 4000};
  report.sets[0].ready_requests.push_back({{{SomeRequest("a"), {}}}, {1, 0, 99}, 0});
  report.sets[0].ready_requests.push_back(
      {{{SomeRequest("b"), {0, 2}}, {SomeRequest("b"), {1}}}, {}, 12});
  report.sets[0].stalls.push_back({SomeRequest("c"), {4, 5}, std::chrono::microseconds(123456)});
  report.sets[3].ready_slots = {2};
  report.sets[3].invalid_slots = {5};
  report.joins = {4, 1};
  report.departures.push_back({6, "shutdown"});
  report.timeline = {{true, true}, {true, false}, {false, false}};
  report.thaws = {{3, false}, {0, true, true}};
  return report;
}

StreamSegment SomeSegment() {
  StreamSegment segment;
  segment.start = 77;
  for (int kind = 0; kind < kStreamKindCount; ++kind) {
    StreamItem& item = segment.items.emplace_back();
    item.kind = static_cast<StreamKind>(kind);
    item.slot = 42;
    item.process_set = 3;
    item.code = StatusCode::kTimeout;
    item.name = "name";
    item.text = "a text";
    item.hint = "a hint";
    item.groups = {"g", "h"};
    item.ranks = {3, 1};
    item.missing = {1};
    item.op = OpKind::kGather;
    item.rank = 11;
    item.flag = true;
    item.frozen = {.length = 161, .repeats = 10, .hash = 0xfedcba9876543210};
    item.agreement = std::make_shared<const Agreement>(Agreement{SomeRequest("x"), {1, 2, 3}});
  }
  return segment;
}

void ExpectEqual(const Readiness& a, const Readiness& b) {
  ASSERT_EQ(a.variants.size(), b.variants.size());
  for (size_t i = 0; i < a.variants.size(); ++i) {
    EXPECT_EQ(a.variants[i].request, b.variants[i].request);
    EXPECT_EQ(a.variants[i].ranks, b.variants[i].ranks);
  }
  EXPECT_EQ(a.first_dims, b.first_dims);
  EXPECT_EQ(a.unlisted_rank_count, b.unlisted_rank_count);
}

template <typename Decode>
void ExpectCutsRefused(const Bytes& message, Decode decode) {
  for (size_t size = 0; size < message.size(); ++size) {
    EXPECT_FALSE(decode(std::span(message).first(size)).ok()) << size;
  }
}

TEST(MessageCodecTest, ReportsSurvive) {
  const Report report = SomeReport();
  const auto messages = EncodeReport(report);
  ASSERT_EQ(messages.size(), 1u);
  const auto decoded = DecodeReport(messages[0]);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->number, report.number);
  EXPECT_EQ(decoded->stream_position, report.stream_position);
  EXPECT_EQ(decoded->sets.at(0).ready_slots, report.sets.at(0).ready_slots);
  EXPECT_EQ(decoded->sets.at(0).invalid_slots, report.sets.at(0).invalid_slots);
  ASSERT_EQ(decoded->sets.at(0).ready_requests.size(), 2u);
  ExpectEqual(decoded->sets.at(0).ready_requests[0], report.sets.at(0).ready_requests[0]);
  ExpectEqual(decoded->sets.at(0).ready_requests[1], report.sets.at(0).ready_requests[1]);
  ASSERT_EQ(decoded->sets.at(0).stalls.size(), 1u);
  EXPECT_EQ(decoded->sets.at(0).stalls[0].request, report.sets.at(0).stalls[0].request);
  EXPECT_EQ(decoded->sets.at(0).stalls[0].missing, report.sets.at(0).stalls[0].missing);
  EXPECT_EQ(decoded->sets.at(0).stalls[0].waited, report.sets.at(0).stalls[0].waited);
  ASSERT_EQ(decoded->sets.size(), 2u);
  EXPECT_EQ(decoded->sets.at(3).ready_slots, (std::vector<uint32_t>{2}));
  EXPECT_EQ(decoded->sets.at(3).invalid_slots, (std::vector<uint32_t>{5}));
  EXPECT_EQ(decoded->joins, report.joins);
  EXPECT_EQ(decoded->thaws, report.thaws);
  ASSERT_EQ(decoded->departures.size(), 1u);
  EXPECT_EQ(decoded->departures[0].rank, 6);
  EXPECT_EQ(decoded->departures[0].reason, "shutdown");
  ASSERT_EQ(decoded->timeline.size(), 3u);
  EXPECT_TRUE(decoded->timeline[0].mark_cycles);
  EXPECT_FALSE(decoded->timeline[2].start);
}

TEST(MessageCodecTest, SegmentsSurvive) {
  const StreamSegment segment = SomeSegment();
  const auto messages = EncodeSegment(segment);
  ASSERT_EQ(messages.size(), 1u);
  const auto decoded = DecodeSegment(messages[0]);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->start, 77u);
  ASSERT_EQ(decoded->items.size(), size_t{kStreamKindCount});
  const auto item = [&](StreamKind kind) { return decoded->items[static_cast<size_t>(kind)]; };
  for (int kind = 0; kind < kStreamKindCount; ++kind) {
    EXPECT_EQ(item(static_cast<StreamKind>(kind)).kind, static_cast<StreamKind>(kind));
  }
  EXPECT_EQ(item(StreamKind::kReadySlot).slot, 42u);
  EXPECT_EQ(item(StreamKind::kReadySlot).process_set, 3);
  EXPECT_EQ(item(StreamKind::kBoundary).process_set, kGlobalProcessSet);
  EXPECT_EQ(item(StreamKind::kAllJoined).rank, 11);
  EXPECT_EQ(item(StreamKind::kReadyAgreement).agreement->request, SomeRequest("x"));
  EXPECT_EQ(item(StreamKind::kReadyAgreement).agreement->first_dims,
            (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(item(StreamKind::kError).code, StatusCode::kTimeout);
  EXPECT_EQ(item(StreamKind::kError).text, "a text");
  EXPECT_EQ(item(StreamKind::kError).hint, "a hint");
  EXPECT_EQ(item(StreamKind::kError).groups, (std::vector<std::string>{"g", "h"}));
  EXPECT_EQ(item(StreamKind::kError).ranks, (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(item(StreamKind::kError).missing, std::vector<int32_t>{1});
  EXPECT_EQ(item(StreamKind::kError).op, OpKind::kGather);
  EXPECT_EQ(item(StreamKind::kInvalidate).slot, 42u);
  EXPECT_EQ(item(StreamKind::kStall).text, "a text");
  EXPECT_EQ(item(StreamKind::kDeparted).rank, 11);
  EXPECT_TRUE(item(StreamKind::kTimelineStart).flag);
  EXPECT_EQ(item(StreamKind::kFreeze).frozen, segment.items.front().frozen);
}

TEST(MessageCodecTest, VotesSurvive) {
  for (const VoteWord word : {VoteWord{}, VoteWord{1, 0, true}, VoteWord{7, 123456789, false},
                              VoteWord{(1 << 24) - 1, (uint64_t{1} << 39) - 1, true}}) {
    const Bytes message = EncodeVote(word);
    const auto decoded = DecodeVote(message);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(*decoded, word);
    ExpectCutsRefused(message, &DecodeVote);
  }
  for (const VoteWord word : {VoteWord{1 << 24, 0, false}, VoteWord{0, uint64_t{1} << 39, false}}) {
    EXPECT_THAT(DecodeVote(EncodeVote(word)).status().message(), HasSubstr("out of range"));
  }
  Bytes message = EncodeVote({});
  message.back() = 2;
  EXPECT_FALSE(DecodeVote(message).ok());
}

TEST(MessageCodecTest, QuestionsAndAnswersSurvive) {
  for (const Question& question : {Question{}, Question{7, 3, "layer.weight"}}) {
    const Bytes message = EncodeQuestion(question);
    EXPECT_EQ(*DecodeQuestion(message), question);
    ExpectCutsRefused(message, &DecodeQuestion);
  }
  for (const Answer& answer : {Answer{}, Answer{7, {0, 5, 12}}}) {
    const Bytes message = EncodeAnswer(answer);
    EXPECT_EQ(*DecodeAnswer(message), answer);
    ExpectCutsRefused(message, &DecodeAnswer);
  }
}

TEST(MessageCodecTest, FarewellsSurvive) {
  const std::string longest(kMaxFarewellBytes, 'x');
  const std::vector<RankProgress> progress = {
      {.rank = 1, .operation = "allreduce", .tensor = "x", .number = 7, .age = 0.5, .turn = 9},
      {.rank = 3}};
  for (const Farewell& farewell :
       {Farewell{}, Farewell{true, "the disk is full"}, Farewell{false, longest, progress}}) {
    const Bytes message = EncodeFarewell(farewell);
    const auto decoded = DecodeFarewell(message);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(decoded->is_told, farewell.is_told);
    EXPECT_EQ(decoded->why, farewell.why);
    EXPECT_EQ(decoded->progress, farewell.progress);
    ExpectCutsRefused(message, &DecodeFarewell);
  }
  EXPECT_EQ(DecodeFarewell(EncodeFarewell({true, longest + "y"}))->why, longest);
  Bytes message = EncodeFarewell({});
  message[kMessageHeaderBytes] = 2;
  EXPECT_FALSE(DecodeFarewell(message).ok());
}

TEST(MessageCodecTest, OneReadySlotTakesOneBit) {
  Report one;
  one.sets[0].ready_slots = {0};
  Report many;
  for (uint32_t slot = 0; slot < 1000; ++slot) many.sets[0].ready_slots.push_back(slot);
  EXPECT_EQ(EncodeReport(many)[0].size() - EncodeReport(one)[0].size(), 1000u / 8 - 1);
}

TEST(MessageCodecTest, LongListsAreSpreadOverMessages) {
  const auto reports = EncodeReport(SomeReport(), 1);
  EXPECT_EQ(reports.size(), 16u);
  Report merged;
  uint32_t next_number = SomeReport().number;
  for (const Bytes& message : reports) {
    const auto report = DecodeReport(message);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->number, next_number++);
    EXPECT_EQ(report->stream_position, SomeReport().stream_position);
    for (const auto& [id, set] : report->sets) {
      auto& requests = merged.sets[id].ready_requests;
      requests.insert(requests.end(), set.ready_requests.begin(), set.ready_requests.end());
    }
  }
  EXPECT_EQ(merged.sets[0].ready_requests.size(), 2u);
  uint64_t position = 77;
  const auto segments = EncodeSegment(SomeSegment(), 60);
  EXPECT_GT(segments.size(), 1u);
  for (const Bytes& message : segments) {
    const auto segment = DecodeSegment(message);
    ASSERT_TRUE(segment.ok());
    EXPECT_EQ(segment->start, position);
    position += segment->items.size();
  }
  EXPECT_EQ(position, 77u + kStreamKindCount);
}

TEST(MessageCodecTest, AnotherVersionIsNamed) {
  Bytes message = EncodeReport(SomeReport())[0];
  message[0] = 9;
  const Status status = DecodeReport(message).status();
  ExpectError(status, StatusCode::kVersionMismatch, {"version 9"});
}

TEST(MessageCodecTest, EveryTruncationIsAnError) {
  const Bytes report = EncodeReport(SomeReport())[0];
  const Bytes segment = EncodeSegment(SomeSegment())[0];
  size_t valid_reports = 0;
  size_t valid_segments = 0;
  for (size_t size = 0; size < report.size(); ++size) {
    valid_reports += DecodeReport(std::span(report).first(size)).ok();
  }
  for (size_t size = 0; size < segment.size(); ++size) {
    valid_segments += DecodeSegment(std::span(segment).first(size)).ok();
  }
  // A message is a list of entries: cut between two of them it is a shorter, valid one.
  EXPECT_EQ(valid_reports, 16u);
  EXPECT_EQ(valid_segments, size_t{kStreamKindCount});
}

TEST(MessageCodecTest, AnnouncedSizesAreCheckedBeforeAllocating) {
  Bytes message = EncodeReport(Report())[0];
  message.push_back(1);                                 // Ready slots
  for (int i = 0; i < 4; ++i) message.push_back(0);     // of set 0
  for (int i = 0; i < 4; ++i) message.push_back(0);     // from slot 0
  for (int i = 0; i < 4; ++i) message.push_back(0xff);  // 4 GiB of bits.
  EXPECT_THAT(DecodeReport(message).status().message(), HasSubstr("announces 4294967295"));
}

TEST(MessageCodecTest, EntriesAreLimited) {
  Bytes message = EncodeSegment(StreamSegment())[0];
  message.resize(message.size() + kMaxEntriesPerMessage, 0);  // Boundaries of one byte each.
  EXPECT_TRUE(DecodeSegment(message).ok());
  message.push_back(0);
  EXPECT_THAT(DecodeSegment(message).status().message(), HasSubstr("more than"));
  StreamSegment segment;
  segment.items.resize(kMaxEntriesPerMessage + 1);
  EXPECT_EQ(EncodeSegment(segment).size(), 2u);
}

TEST(MessageCodecTest, BadRequestsAreNamed) {
  const auto text = [](auto change) {
    Request request = SomeRequest("x");
    change(request);
    const Status status = CheckRequest(request);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.ok() ? std::string() : status.message();
  };
  EXPECT_TRUE(CheckRequest(SomeRequest("x")).ok());
  EXPECT_THAT(text([](Request& r) { r.name.clear(); }), HasSubstr("the name is empty"));
  EXPECT_THAT(text([](Request& r) { r.name.assign(5000, 'n'); }), HasSubstr("5000 bytes"));
  EXPECT_THAT(text([](Request& r) { r.group.assign(5000, 'n'); }), HasSubstr("group's name"));
  EXPECT_THAT(text([](Request& r) { r.group_size = 0; }), HasSubstr("size 0"));
  EXPECT_THAT(text([](Request& r) { r.shape = Shape({-1}); }), HasSubstr("[-1] is invalid"));
  EXPECT_THAT(text([](Request& r) { r.shape = Shape(std::vector<int64_t>(65, 1)); }),
              HasSubstr("65 dimensions"));
}

// Bytes from anywhere: whatever they are, decoding ends and what it accepts can be encoded again.
class DecoderFuzz {
 public:
  explicit DecoderFuzz(uint32_t seed) : random_(seed) {
    for (const Bytes& message : EncodeReport(SomeReport(), 64)) seeds_.push_back(message);
    for (const Bytes& message : EncodeSegment(SomeSegment(), 64)) seeds_.push_back(message);
    seeds_.push_back(EncodeReport(SomeReport())[0]);
    seeds_.push_back(EncodeSegment(SomeSegment())[0]);
  }

  void Run(int round_count) {
    for (int i = 0; i < round_count; ++i) Decode(random_() % 4 == 0 ? Random() : Mutated());
  }
  int accepted() const { return accepted_; }
  int refused() const { return refused_; }

 private:
  Bytes Random() {
    Bytes message(random_() % 64);
    for (uint8_t& byte : message) byte = static_cast<uint8_t>(random_());
    if (message.size() >= 2) message[0] = kWireVersion;
    if (message.size() >= 2) message[1] = static_cast<uint8_t>(random_() % 8);
    return message;
  }

  Bytes Mutated() {
    Bytes message = seeds_[random_() % seeds_.size()];
    for (uint32_t changes = random_() % 4; changes > 0; --changes) {
      const size_t at = random_() % message.size();
      const uint8_t interesting[] = {0, 1, 0x7f, 0x80, 0xff, static_cast<uint8_t>(random_())};
      message[at] = interesting[random_() % 6];
    }
    if (random_() % 3 == 0) message.resize(random_() % (message.size() + 1));
    if (random_() % 8 == 0) message.resize(message.size() + random_() % 9, 0xff);
    return message;
  }

  void Decode(const Bytes& message) {
    const auto report = DecodeReport(message);
    const auto segment = DecodeSegment(message);
    const auto question = DecodeQuestion(message);
    const auto answer = DecodeAnswer(message);
    ASSERT_TRUE(question.ok() || !question.status().message().empty());
    ASSERT_TRUE(answer.ok() || !answer.status().message().empty());
    ++(report.ok() || segment.ok() ? accepted_ : refused_);
    if (report.ok()) {
      ASSERT_TRUE(DecodeReport(EncodeReport(*report, SIZE_MAX)[0]).ok());
    } else {
      ASSERT_FALSE(report.status().message().empty());
    }
    if (segment.ok()) {
      ASSERT_TRUE(DecodeSegment(EncodeSegment(*segment, SIZE_MAX)[0]).ok());
    }
  }

  std::mt19937 random_;
  std::vector<Bytes> seeds_;
  int accepted_ = 0;
  int refused_ = 0;
};

TEST(MessageCodecTest, AMillionHostileMessagesAreDecodedOrRefused) {
  DecoderFuzz fuzz(20261121);
  fuzz.Run(1'000'000);
  EXPECT_GT(fuzz.accepted(), 10'000);
  EXPECT_GT(fuzz.refused(), 100'000);
}

}  // namespace
}  // namespace mydist
