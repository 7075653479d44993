// A vertex of the tree, whatever its peers send and its own program does: it may end with an error,
// and does not crash. What it lets through keeps what the engine relies on.
#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "controller/coordinator.h"
#include "controller/messages/wire.h"
#include "target.h"

namespace mydist::fuzz {
namespace {

constexpr int kSize = 4;

class Plane : public ControlPlane {
 public:
  Status Send(int peer, Bytes message) override {
    FUZZ_EXPECT(peer >= 0 && peer < kSize);
    FUZZ_EXPECT(PeekKind(message).ok());
    return Status::Ok();
  }
  Result<std::optional<IncomingMessage>> Receive() override {
    if (inbox.empty()) return std::optional<IncomingMessage>();
    std::optional<IncomingMessage> first(std::move(inbox.front()));
    inbox.pop_front();
    return first;
  }
  void Await(TimePoint) override {}
  void Wake() override {}
  void Attend(bool) override {}
  Status Close(TimePoint) override { return Status::Ok(); }

  std::deque<IncomingMessage> inbox;
};

// The others of this host say what was put here.
class Board : public VoteBoard {
 public:
  void Cast(Voice voice, const VoteWord& word, std::span<const int32_t> members) override {
    FUZZ_EXPECT(voice != Voice::kHost);
    FUZZ_EXPECT(std::ranges::all_of(members, [](int32_t rank) { return rank < kSize; }));
    words[{voice, self}] = word;
  }
  VoteWord Read(Voice voice, int32_t rank) const override {
    const auto found = words.find({voice, rank});
    return found == words.end() ? VoteWord() : found->second;
  }

  int32_t self = 0;
  std::map<std::pair<Voice, int32_t>, VoteWord> words;
};

class Program {
 public:
  explicit Program(Input input) : input_(input), coordinator_(Options(input_), &plane_, &board_) {
    board_.self = rank_;
  }

  void Run() {
    Status status;
    for (int step = 0; step < 64 && status.ok() && !input_.empty(); ++step) status = Step();
    while (status.ok() && coordinator_.NextDeadline() <= now_ && turns_-- > 0) status = Turn();
    // As the engine does.
    coordinator_.Leave(status);
  }

 private:
  static constexpr int kRadix = 2;

  CoordinatorOptions Options(Input& input) {
    const uint8_t choice = input.Byte();
    rank_ = choice % kSize;
    CoordinatorOptions options;
    options.rank = rank_;
    options.size = kSize;
    options.radix = kRadix;
    options.cache_capacity = choice & 4 ? 3 : 0;
    options.freeze_after = choice & 8 ? 1 : 0;
    options.stall_warning = std::chrono::seconds(1);
    options.stall_shutdown = std::chrono::seconds(choice & 16 ? 3 : 0);
    if (choice & 32) options.hosts = {"a", "b", "b", "a"};
    return options;
  }

  Status Step() {
    const uint8_t what = input_.Byte();
    switch (what % 8) {
      case 0:
      case 1:
        plane_.inbox.push_back({Peer(what / 8), input_.Block()});
        return Status::Ok();
      case 2:
        return Announce(what / 8);
      case 3:
        now_ += std::chrono::seconds(1);
        return Turn();
      case 4:
        return Word(what / 8);
      case 5:
        return Own(what / 8);
      default:
        return Turn();
    }
  }

  int Peer(int number) const {
    const int peer = number % kSize;
    return peer == rank_ ? (peer + 1) % kSize : peer;
  }

  // What its program does wrong is for the program to hear.
  static Status Refused(const Status& status) {
    const bool is_told = status.code() == StatusCode::kInvalidArgument ||
                         status.code() == StatusCode::kTimeout || status.ok();
    return is_told ? Status::Ok() : status;
  }

  Status Announce(int choice) {
    constexpr std::array kOps = {OpKind::kAllreduce, OpKind::kAllgather, OpKind::kBroadcast,
                                 OpKind::kSendReceive};
    Request request;
    request.name = choice & 4 ? "b" : "a";
    request.op = kOps[static_cast<size_t>(choice) % 4];
    request.shape = Shape({2});
    request.root_rank = 0;
    if (request.op == OpKind::kSendReceive) request.ranks = {rank_, Peer(0)};
    if (choice & 8) {
      request.group = "g";
      request.group_size = 2;
    }
    return Refused(coordinator_.Announce({request}, now_));
  }

  Status Turn() {
    MYDIST_RETURN_IF_ERROR(coordinator_.Exchange(now_));
    MYDIST_ASSIGN_OR_RETURN(const std::vector<Response> batch, coordinator_.Negotiate(now_));
    for (const Response& response : batch) Check(response);
    return Status::Ok();
  }

  // What the engine does not look at again.
  static void Check(const Response& response) {
    if (response.kind == ResponseKind::kError) FUZZ_EXPECT(!response.status.ok());
    if (response.kind == ResponseKind::kDeparted || response.kind == ResponseKind::kAllJoined) {
      FUZZ_EXPECT(response.rank >= 0 && response.rank < kSize);
    }
    if (response.kind != ResponseKind::kReady) return;
    FUZZ_EXPECT(response.agreement != nullptr);
    const Request& request = response.agreement->request;
    FUZZ_EXPECT(CheckRequest(request).ok());
    FUZZ_EXPECT(request.process_set == response.process_set);
    if (response.process_set != kGlobalProcessSet) return;
    const size_t rows = GathersRows(request.op) ? kSize : 0;
    FUZZ_EXPECT(response.agreement->first_dims.size() == rows);
    if (HasRoot(request.op)) FUZZ_EXPECT(request.root_rank >= 0 && request.root_rank < kSize);
  }

  // Of a peer on this host.
  Status Word(int choice) {
    const VoteWord word{static_cast<uint32_t>(choice & 3), input_.Byte(), (choice & 4) != 0};
    board_.words[{choice & 8 ? Voice::kRank : Voice::kOutcome, Peer(choice)}] = word;
    return Status::Ok();
  }

  Status Own(int choice) {
    switch (choice % 8) {
      case 0:
        return Refused(coordinator_.Join());
      case 1:
        return coordinator_.Depart("shutdown");
      case 2:
        coordinator_.RequestTimeline({(choice & 8) != 0, false});
        return Status::Ok();
      case 3:
        coordinator_.SetWaiting((choice & 8) != 0, now_);
        return Status::Ok();
      case 4:
        return coordinator_.Inquire(kGlobalProcessSet, "a");
      case 5:
        return coordinator_.InquireWhoStays();
      case 6:
        return coordinator_.InquireWhoJoins();
      default:
        coordinator_.EndInquiry();
        return Status::Ok();
    }
  }

  Input input_;
  int rank_ = 0;
  int turns_ = 64;
  TimePoint now_ = TimePoint(std::chrono::seconds(100));
  Plane plane_;
  Board board_;
  Coordinator coordinator_;
};

void Vertex(std::span<const uint8_t> bytes) { Program(Input(bytes)).Run(); }

Request Called(const std::string& name, OpKind op = OpKind::kAllreduce) {
  Request request;
  request.name = name;
  request.op = op;
  request.shape = Shape({2});
  return request;
}

// A program: rank and options, then steps.
class Script {
 public:
  explicit Script(uint8_t choice) : bytes_{choice} {}
  Script& Do(uint8_t what) {
    bytes_.push_back(what);
    return *this;
  }
  Script& From(int peer, const Bytes& message) {
    const auto size = static_cast<uint16_t>(message.size());
    bytes_.insert(bytes_.end(), {static_cast<uint8_t>(8 * peer), static_cast<uint8_t>(size),
                                 static_cast<uint8_t>(size >> 8)});
    bytes_.insert(bytes_.end(), message.begin(), message.end());
    return *this;
  }
  Script& Turn() { return Do(6); }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

Bytes ReadyReport(const Request& request, uint64_t position, size_t ranks) {
  Report report;
  report.stream_position = position;
  std::vector<int64_t> rows(GathersRows(request.op) ? ranks : 0, 2);
  report.sets[0].ready_requests.push_back({{{RankIndependent(request), {}}}, rows, 0});
  return EncodeReport(report).front();
}

Bytes Segment(uint64_t start, std::vector<StreamItem> items) {
  items.emplace_back();
  return EncodeSegment({start, std::move(items)}).front();
}

StreamItem Agreed(const Request& request) {
  std::vector<int64_t> rows(GathersRows(request.op) ? kSize : 0, 2);
  return {
      .kind = StreamKind::kReadyAgreement,
      .agreement = std::make_shared<const Agreement>(Agreement{RankIndependent(request), rows})};
}

constexpr uint8_t kAnnounceA = 2;
constexpr uint8_t kAnnounceRows = 2 + 8;

// The root: ranks 1 and 2 are its children, and rank 3 is below rank 1.
std::vector<Bytes> RootSeeds() {
  const Request a = Called("a");
  const Request rows = Called("a", OpKind::kAllgather);
  Request other = a;
  other.dtype = DataType::kInt32;
  Report slots;
  slots.stream_position = 2;
  slots.sets[0].ready_slots = {0};
  slots.joins = {2};
  Report leaves;
  leaves.departures = {{2, "shutdown"}};
  leaves.timeline = {{true, true}};
  Script twice(4);
  twice.Do(kAnnounceA).From(1, ReadyReport(a, 0, 2)).From(2, ReadyReport(a, 0, 1)).Turn();
  twice.Do(kAnnounceA).From(2, EncodeReport(slots).front()).Turn();
  Script gathers(0);
  gathers.Do(kAnnounceRows)
      .From(1, ReadyReport(rows, 0, 2))
      .From(2, ReadyReport(rows, 0, 1))
      .Turn();
  Script differs(0);
  differs.Do(kAnnounceA).From(1, ReadyReport(other, 0, 2)).From(2, ReadyReport(a, 0, 1)).Turn();
  Script stalls(16);
  stalls.Do(kAnnounceA).Do(3).Do(3).Do(3).From(2, EncodeReport(leaves).front()).Turn();
  Script asks(0);
  asks.Do(5 + 8 * 4).From(1, EncodeAnswer({1, {2}})).Turn().Do(5).Do(5 + 8).Turn();
  return {twice.bytes(), gathers.bytes(), differs.bytes(), stalls.bytes(), asks.bytes()};
}

// Ranks 1 and 3, which is below it, and rank 2.
std::vector<Bytes> VertexSeeds() {
  const Request a = Called("a");
  const Bytes ready = Segment(2, {{.kind = StreamKind::kReadySlot}});
  const Bytes freeze =
      Segment(4, {{.kind = StreamKind::kFreeze, .frozen = {.length = 1, .repeats = 1, .hash = 0}}});
  Script middle(4 + 1);
  middle.Do(kAnnounceA)
      .From(3, ReadyReport(a, 0, 1))
      .Turn()
      .From(0, Segment(0, {Agreed(a)}))
      .Turn();
  Script leaf(4 + 3);
  leaf.Do(kAnnounceA).Turn().From(1, Segment(0, {Agreed(a)})).Turn().From(1, ready).Turn();
  Script frozen(4 + 8 + 3);
  frozen.Do(kAnnounceA).Turn().From(1, Segment(0, {Agreed(a)})).Turn().Do(kAnnounceA);
  frozen.From(1, ready).Turn().From(1, freeze).Turn().Do(kAnnounceA).Turn();
  frozen.From(1, Segment(6, {{.kind = StreamKind::kThaw}})).Turn();
  Script ends(1);
  ends.From(0, Segment(0, {{.kind = StreamKind::kDeparted, .text = "x", .rank = 2}})).Turn();
  ends.From(0, Segment(2, {{.kind = StreamKind::kFinished}})).Turn();
  Script words(2);
  words.From(0, EncodeFarewell({true, "1\nthe disk is full"})).Turn();
  words.From(1, EncodeQuestion({1, 0, "a"})).From(1, EncodeVote({1, 2, false})).Turn();
  std::vector<Bytes> seeds = RootSeeds();
  for (const Script& script : {middle, leaf, frozen, ends, words}) seeds.push_back(script.bytes());
  return seeds;
}

}  // namespace

std::vector<Target> CoordinatorTargets() { return {{"vertex", Vertex, VertexSeeds}}; }

}  // namespace mydist::fuzz
