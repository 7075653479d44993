// What workers and servers of the parameter server tell each other. Without Asio itself.
#include <algorithm>
#include <array>
#include <string>

#include "base/bytes.h"
#include "ps/frame.h"
#include "ps/port/greeting.h"
#include "ps/table_spec.h"
#include "target.h"

namespace mydist::fuzz {
namespace {

// As much of the input as goes in; what is missing is 0.
template <size_t kSize>
std::array<uint8_t, kSize> Start(std::span<const uint8_t> bytes) {
  std::array<uint8_t, kSize> start{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), kSize), start.begin());
  return start;
}

template <typename Encoded>
Bytes Copy(const Encoded& bytes) {
  return {bytes.begin(), bytes.end()};
}

// A frame, then the size of the window.
void PsFrame(std::span<const uint8_t> bytes) {
  const auto header = Start<ps::kFrameBytes>(bytes);
  Input rest(bytes.subspan(std::min(bytes.size(), ps::kFrameBytes)));
  const auto window_bytes = static_cast<uint64_t>(rest.Int64());
  const Result<ps::Frame> frame = ps::DecodeFrame(header, window_bytes);
  if (!frame.ok()) return;
  FUZZ_EXPECT(ps::EncodeFrame(*frame) == header);
  FUZZ_EXPECT(frame->payload_bytes <= ps::kMaxPayloadBytes);
  FUZZ_EXPECT(ps::FrameKindName(frame->kind) != "unknown");
  if (!frame->is_in_window) return;
  FUZZ_EXPECT(frame->place <= window_bytes);
  FUZZ_EXPECT(frame->payload_bytes <= window_bytes - frame->place);
}

std::vector<Bytes> PsFrameSeeds() {
  std::vector<Bytes> seeds;
  seeds.push_back(Copy(ps::EncodeFrame(
      {.kind = ps::FrameKind::kPush, .table = 1, .piece = 2, .sequence = 3, .payload_bytes = 4})));
  Bytes& in_window = seeds.emplace_back(Copy(ps::EncodeFrame({.kind = ps::FrameKind::kAnswer,
                                                              .is_in_window = true,
                                                              .code = 4,
                                                              .payload_bytes = 9,
                                                              .place = 7})));
  in_window.insert(in_window.end(), {16, 0, 0, 0, 0, 0, 0, 0});
  return seeds;
}

ps::TableSpec DenseTable() {
  return {.name = "fc",
          .elements = 1000,
          .piece_elements = 256,
          .rule = {"sgd", {{"lr", 0.1}}},
          .ranks = {0, 1, 5}};
}

void PsTableSpec(std::span<const uint8_t> bytes) {
  const Result<ps::TableSpec> spec = ps::DecodeTableSpec(bytes);
  if (!spec.ok()) return;
  FUZZ_EXPECT(ps::CheckTableSpec(*spec).ok());
  const Bytes again = ps::EncodeTableSpec(*spec);
  FUZZ_EXPECT(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  FUZZ_EXPECT(ps::ConsistencyText(*spec) != "unknown");
  const int64_t last = spec->PieceCount() - 1;
  FUZZ_EXPECT(last >= 0);
  if (!spec->is_dense()) return;
  FUZZ_EXPECT(spec->PieceBegin(last) + spec->PieceElements(last) == spec->elements);
  FUZZ_EXPECT(spec->PieceElements(last) >= 1);
}

std::vector<Bytes> PsTableSpecSeeds() {
  ps::TableSpec rows{.name = "emb",
                     .rows = 100,
                     .width = 8,
                     .init = {ps::RowInit::Kind::kNormal, 0.01, 7},
                     .rule = {"add", {}},
                     .consistency = ps::Consistency::kSsp,
                     .bound = 3,
                     .ranks = {2}};
  return {ps::EncodeTableSpec(DenseTable()), ps::EncodeTableSpec(rows)};
}

void PsRuleSpec(std::span<const uint8_t> bytes) {
  ByteReader reader(bytes, "rule");
  const ps::RuleSpec spec = ps::DecodeRuleSpec(reader);
  if (!reader.Finish().ok()) return;
  ByteWriter writer;
  ps::EncodeRuleSpec(spec, writer);
  const Bytes again = std::move(writer).Take();
  FUZZ_EXPECT(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  const auto rule = ps::MakeRule(spec, 3);
  if (rule.ok()) FUZZ_EXPECT((*rule)->StateFloats(10) >= 0);
}

std::vector<Bytes> PsRuleSpecSeeds() {
  std::vector<Bytes> seeds;
  for (const ps::RuleRow& row : ps::RuleRows()) {
    ps::RuleSpec spec{row.name, {}};
    for (const ps::RuleOption& option : row.options) spec.options.emplace_back(option.name, 0.5);
    ByteWriter writer;
    ps::EncodeRuleSpec(spec, writer);
    seeds.push_back(std::move(writer).Take());
  }
  return seeds;
}

// All that is said before the first frame, each by itself.
void PsGreeting(std::span<const uint8_t> bytes) {
  const auto hello = Start<ps::kHelloBytes>(bytes);
  const Result<ps::Nonce> nonce = ps::DecodeHello(hello);
  if (nonce.ok()) FUZZ_EXPECT(ps::EncodeHello(*nonce) == hello);

  const auto reply = Start<ps::kReplyBytes>(bytes);
  const Result<ps::Reply> decoded = ps::DecodeReply(reply);
  if (decoded.ok()) FUZZ_EXPECT(ps::EncodeReply(*decoded) == reply);

  const Result<size_t> length = ps::DecodeGreetingLength(Start<4>(bytes));
  if (!length.ok() || bytes.size() < 4) return;
  FUZZ_EXPECT(*length >= 1 && *length <= ps::kMaxGreetingBytes);
  const Result<ps::Greeting> greeting = ps::DecodeGreeting(bytes.subspan(4));
  if (!greeting.ok()) return;
  FUZZ_EXPECT(greeting->self.number >= 0);
  FUZZ_EXPECT(greeting->window_bytes <= ps::kMaxWindowBytes);
  const Bytes again = ps::EncodeGreeting(*greeting);
  FUZZ_EXPECT(again.size() <= 4 + ps::kMaxGreetingBytes);
  FUZZ_EXPECT(std::equal(again.begin() + 4, again.end(), bytes.begin() + 4, bytes.end()));
}

std::vector<Bytes> PsGreetingSeeds() {
  ps::Nonce nonce;
  nonce.fill(7);
  const ps::Greeting greeting{.self = {.number = 3, .pid = 77, .host = "host", .session = 9},
                              .window_bytes = 1 << 20,
                              .refusal = "full"};
  return {Copy(ps::EncodeHello(nonce)), Copy(ps::EncodeReply({nonce, nonce})),
          ps::EncodeGreeting(greeting)};
}

}  // namespace

std::vector<Target> PsTargets() {
  return {{"ps_frame", PsFrame, PsFrameSeeds},
          {"ps_table_spec", PsTableSpec, PsTableSpecSeeds},
          {"ps_rule_spec", PsRuleSpec, PsRuleSpecSeeds},
          {"ps_greeting", PsGreeting, PsGreetingSeeds}};
}

}  // namespace mydist::fuzz
