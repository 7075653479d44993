// Sessions: each request is done once, over any number of connections.
#include "ps/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ps/error_bytes.h"

namespace mydist::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TableSpec Spec(Consistency consistency, std::vector<int> ranks) {
  return {.name = "fc",
          .elements = 2,
          .piece_elements = 2,
          .rule = {"sgd", {{"lr", 1.0}}},
          .consistency = consistency,
          .ranks = std::move(ranks)};
}

std::vector<uint8_t> BytesOf(const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A worker as its session sees it.
class FakeWorker {
 public:
  FakeWorker(Store* store, int rank) : session_(std::make_shared<Session>(store, rank)) {
    Connect();
  }

  void Connect() {
    connection_ =
        session_->Connect([this](const Frame& frame, std::span<const uint8_t> payload, Payload*) {
          if (frame.kind == FrameKind::kTaken) {
            taken_.push_back(frame.sequence);
          } else {
            answers_.push_back({frame, {payload.begin(), payload.end()}});
          }
        });
  }
  void Disconnect() { EXPECT_TRUE(session_->Disconnect(connection_)); }
  // The sequence of the request.
  uint64_t Ask(Frame frame, const std::vector<uint8_t>& payload = {}) {
    frame.sequence = ++sequence_;
    frame.version = frame.version == 0 ? 1 : frame.version;
    last_ = frame;
    session_->Take(connection_, frame, Payload(payload));
    return frame.sequence;
  }
  void Repeat(const std::vector<uint8_t>& payload = {}) {
    session_->Take(connection_, last_, Payload(payload));
  }
  void Declare(const TableSpec& spec, const std::vector<float>& start) {
    Ask({.kind = FrameKind::kDeclare, .table = 1}, EncodeTableSpec(spec));
    Ask({.kind = FrameKind::kStart, .table = 1}, BytesOf(start));
    for (const auto& answer : answers_) EXPECT_EQ(answer.frame.code, 0);
    answers_.clear();
  }

  struct Received {
    Frame frame;
    std::vector<uint8_t> payload;
    std::vector<float> values() const {
      std::vector<float> result(payload.size() / sizeof(float));
      std::memcpy(result.data(), payload.data(), payload.size());
      return result;
    }
    Status error() const { return DecodeError(frame.code, payload); }
  };
  std::vector<Received> answers_;
  std::vector<uint64_t> taken_;  // Requests whose room is free again.
  int64_t connection_ = 0;
  const std::shared_ptr<Session> session_;

 private:
  uint64_t sequence_ = 0;
  Frame last_;
};

TEST(Session, APushThatComesAgainIsAnsweredAndNotApplied) {
  Store store;
  FakeWorker worker(&store, 0);
  worker.Declare(Spec(Consistency::kAsync, {0}), {10, 20});
  for (const FrameKind kind : {FrameKind::kPush, FrameKind::kPushPull}) {
    worker.Disconnect();
    worker.Ask({.kind = kind, .table = 1}, BytesOf({1, 1}));
    EXPECT_TRUE(worker.answers_.empty());
    worker.Connect();
    worker.Repeat(BytesOf({1, 1}));
    ASSERT_EQ(worker.answers_.size(), 1U);
    EXPECT_EQ(worker.answers_[0].frame.code, 0);
    if (kind == FrameKind::kPushPull) EXPECT_THAT(worker.answers_[0].values(), ElementsAre(8, 18));
    worker.answers_.clear();
  }
  worker.Ask({.kind = FrameKind::kPull, .table = 1});
  EXPECT_THAT(worker.answers_[0].values(), ElementsAre(8, 18));
}

TEST(Session, ARequestThatWaitsIsAnsweredOverTheNewConnection) {
  Store store;
  FakeWorker slow(&store, 3);
  FakeWorker fast(&store, 5);
  slow.Declare(Spec(Consistency::kSync, {3, 5}), {10, 20});
  fast.Ask({.kind = FrameKind::kPushPull, .table = 1, .worker = 1}, BytesOf({2, 2}));
  fast.Disconnect();
  fast.Connect();
  fast.Repeat(BytesOf({2, 2}));
  EXPECT_TRUE(fast.answers_.empty());
  slow.Ask({.kind = FrameKind::kPush, .table = 1}, BytesOf({4, 4}));
  ASSERT_EQ(fast.answers_.size(), 1U);
  EXPECT_THAT(fast.answers_[0].values(), ElementsAre(7, 17));
}

// Its place was in the window of the connection that is gone.
TEST(Session, AnAnswerWaitsUntilItIsAskedForOverTheNewConnection) {
  Store store;
  FakeWorker slow(&store, 3);
  FakeWorker fast(&store, 5);
  slow.Declare(Spec(Consistency::kSync, {3, 5}), {10, 20});
  Frame pull{.kind = FrameKind::kPushPull, .is_in_window = true, .table = 1, .worker = 1};
  pull.place = 128;
  pull.sequence = pull.version = 1;
  fast.session_->Take(fast.connection_, pull, Payload(BytesOf({2, 2})));
  fast.Connect();
  slow.Ask({.kind = FrameKind::kPush, .table = 1}, BytesOf({4, 4}));
  EXPECT_TRUE(fast.answers_.empty());
  pull.place = 64;
  fast.session_->Take(fast.connection_, pull, Payload(BytesOf({2, 2})));
  ASSERT_EQ(fast.answers_.size(), 1U);
  EXPECT_THAT(fast.answers_[0].values(), ElementsAre(7, 17));
  EXPECT_EQ(fast.answers_[0].frame.place, 64U);
}

TEST(Session, WhatAnEarlierConnectionBringsLateCountsNoMore) {
  Store store;
  FakeWorker worker(&store, 0);
  worker.Declare(Spec(Consistency::kAsync, {0}), {10, 20});
  const int64_t earlier = worker.connection_;
  worker.Connect();
  const Frame late{.kind = FrameKind::kPush, .table = 1, .sequence = 9, .version = 9};
  worker.session_->Take(earlier, late, Payload(BytesOf({1, 1})));
  EXPECT_FALSE(worker.session_->Disconnect(earlier));
  worker.Ask({.kind = FrameKind::kPull, .table = 1});
  ASSERT_EQ(worker.answers_.size(), 1U);
  EXPECT_THAT(worker.answers_[0].values(), ElementsAre(10, 20));
}

TEST(Session, APingTellsWhatTheWorkerWaitsFor) {
  Store store;
  FakeWorker fast(&store, 0);
  FakeWorker slow(&store, 1);
  fast.Declare(Spec(Consistency::kSync, {0, 1}), {0, 0});
  fast.Ask({.kind = FrameKind::kPushPull, .table = 1}, BytesOf({2, 2}));
  fast.Ask({.kind = FrameKind::kPing});
  ASSERT_EQ(fast.answers_.size(), 1U);
  const Status why =
      DecodeError(static_cast<uint8_t>(StatusCode::kTimeout), fast.answers_[0].payload);
  EXPECT_EQ(why.message(), "table 'fc': rank 0 at clock 1 waits for rank 1 at 0 (sync)");
  EXPECT_THAT(why.failure().ranks, ElementsAre(1));
}

TEST(Session, WrongRequestsAreAnsweredWithTheReason) {
  Store store;
  FakeWorker worker(&store, 0);
  worker.Declare(Spec(Consistency::kAsync, {0}), {10, 20});
  const TableSpec other = Spec(Consistency::kSync, {0});
  TableSpec huge = Spec(Consistency::kSync, {0});
  huge.elements = std::numeric_limits<int64_t>::max();
  const std::vector<std::tuple<Frame, std::vector<uint8_t>, StatusCode, std::string>> wrong = {
      {{.kind = FrameKind::kPull, .table = 9}, {}, StatusCode::kInvalidArgument, "no table 9"},
      {{.kind = FrameKind::kPull, .table = 1, .piece = 4},
       {},
       StatusCode::kInvalidArgument,
       "piece 4 is not on this server"},
      {{.kind = FrameKind::kPull, .table = 1, .worker = 1},
       {},
       StatusCode::kInvalidArgument,
       "rank 0 is not worker 1"},
      {{.kind = FrameKind::kOpen, .table = 1},
       EncodeTableSpec(other),
       StatusCode::kMismatch,
       "async, 1 workers; and 'fc': 2 elements, sgd(lr=1), sync"},
      {{.kind = FrameKind::kStart, .table = 1},
       {1, 2},
       StatusCode::kInvalidArgument,
       "starts with 2 bytes, expected 8"},
      {{.kind = FrameKind::kDeclare, .table = 2}, {1, 2}, StatusCode::kInternal, "declaration"},
      {{.kind = FrameKind::kDeclare, .table = 2},
       EncodeTableSpec(huge),
       StatusCode::kInvalidArgument,
       "it has too many pieces"},
  };
  for (const auto& [frame, payload, code, text] : wrong) {
    worker.answers_.clear();
    worker.Ask(frame, payload);
    ASSERT_EQ(worker.answers_.size(), 1U);
    EXPECT_EQ(worker.answers_[0].error().code(), code);
    EXPECT_THAT(worker.answers_[0].error().message(), HasSubstr(text));
  }
}

TEST(Session, AnAnswerTakesThePlaceOfItsGradientUnlessThatWasCopied) {
  Store store;
  FakeWorker fast(&store, 0);
  FakeWorker slow(&store, 1);
  fast.Declare(Spec(Consistency::kSync, {0, 1}), {10, 20});
  for (const bool is_copied : {false, true}) {
    const uint64_t sequence =
        fast.Ask({.kind = FrameKind::kPushPull, .is_in_window = true, .table = 1, .place = 128},
                 BytesOf({2, 2}));
    if (is_copied) fast.session_->NoteCopied(fast.connection_, sequence);
    slow.Ask({.kind = FrameKind::kPush, .table = 1, .worker = 1}, BytesOf({2, 2}));
    const FakeWorker::Received& last = fast.answers_.back();
    EXPECT_EQ(last.frame.is_in_window, !is_copied);
    if (!is_copied) EXPECT_EQ(last.frame.place, 128U);
  }
  EXPECT_EQ(fast.taken_.size(), 1U);
}

TEST(ErrorBytes, CarryWhatIsKnown) {
  const Status error = Status::PeerLost("rank 1 has died")
                           .About({.ranks = {1}, .host = "a", .pid = 7, .finding = kDeadFinding});
  const Status read = DecodeError(static_cast<uint8_t>(error.code()), EncodeError(error));
  EXPECT_EQ(read.ToString(), error.ToString());
  EXPECT_EQ(read.failure(), error.failure());
  EXPECT_EQ(DecodeError(4, std::vector<uint8_t>{1, 2}).code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace mydist::ps
