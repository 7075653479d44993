// Pieces: what each consistency applies, in which order, and which requests wait.
#include "ps/piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ps/row_piece.h"

namespace mydist::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TableSpec Dense(Consistency consistency, int workers, int64_t bound = 0) {
  TableSpec spec{.name = "fc",
                 .elements = 2,
                 .piece_elements = 2,
                 .rule = {"sgd", {{"lr", 1.0}}},
                 .consistency = consistency,
                 .bound = bound};
  for (int rank = 0; rank < workers; ++rank) spec.ranks.push_back(rank);
  return spec;
}

Payload Bytes(const std::vector<float>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return Payload(std::move(bytes));
}

// What a request was answered with; nothing: not yet.
struct Seen {
  std::optional<Status> status;
  std::vector<float> parameters;
  int64_t updates = -1;
};

OnAnswer Into(Seen& seen) {
  return [&seen](const Answer& answer) {
    EXPECT_FALSE(seen.status.has_value());
    seen.status = answer.status;
    seen.parameters.assign(answer.parameters.begin(), answer.parameters.end());
    seen.updates = answer.updates;
  };
}

class DensePieceTest : public ::testing::Test {
 protected:
  void Open(const TableSpec& spec) {
    spec_ = spec;
    piece_ = std::make_unique<DensePiece>(spec_, std::vector<float>{10, 20});
  }
  Seen Push(int worker, const std::vector<float>& gradient) {
    Seen seen;
    piece_->Push(worker, Bytes(gradient), false, Into(seen));
    return seen;
  }
  void PushPull(int worker, const std::vector<float>& gradient, Seen& seen) {
    piece_->Push(worker, Bytes(gradient), true, Into(seen));
  }
  std::vector<float> Values(int worker) {
    Seen seen;
    piece_->Pull(worker, {}, Into(seen));
    EXPECT_TRUE(seen.status.has_value() && seen.status->ok());
    return seen.parameters;
  }

  TableSpec spec_;
  std::unique_ptr<DensePiece> piece_;
};

TEST_F(DensePieceTest, SyncAppliesTheMeanOnceAllHavePushed) {
  Open(Dense(Consistency::kSync, 2));
  Seen first;
  PushPull(1, {3, 1}, first);
  EXPECT_FALSE(first.status.has_value());
  EXPECT_THAT(piece_->WhyWaits(1).message(), "rank 1 at clock 1 waits for rank 0 at 0 (sync)");
  Seen second;
  PushPull(0, {1, 3}, second);
  EXPECT_THAT(first.parameters, ElementsAre(8, 18));
  EXPECT_THAT(second.parameters, ElementsAre(8, 18));
  EXPECT_EQ(second.updates, 1);
}

// The bits of ((a + b) + c) / 3, whatever the order of arrival.
TEST_F(DensePieceTest, SyncFoldsInTheOrderOfTheWorkers) {
  const float values[] = {1e8F, -1e8F, 1.0F};
  const float mean = ((values[0] + values[1]) + values[2]) / 3;
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    Open(Dense(Consistency::kSync, 3));
    for (const int worker : order) {
      EXPECT_TRUE(Push(worker, {values[worker], 0}).status->ok());
    }
    EXPECT_THAT(Values(0), ElementsAre(10 - mean, 20));
  }
}

TEST_F(DensePieceTest, SyncKeepsTheClocksOfAWorkerThatIsAheadApart) {
  Open(Dense(Consistency::kSync, 2));
  EXPECT_TRUE(Push(0, {2, 0}).status->ok());
  Seen ahead;
  piece_->Push(0, Bytes({4, 0}), false, Into(ahead));
  EXPECT_THAT(Values(1), ElementsAre(10, 20));
  Push(1, {0, 0});
  EXPECT_THAT(Values(1), ElementsAre(9, 20));
  Push(1, {0, 2});
  EXPECT_THAT(Values(0), ElementsAre(7, 19));
}

TEST_F(DensePieceTest, SyncAnswersAPushThatIsAheadOnceTheClockBeforeIsComplete) {
  Open(Dense(Consistency::kSync, 2));
  EXPECT_TRUE(Push(0, {1, 0}).status->ok());
  Seen second;
  piece_->Push(0, Bytes({1, 0}), false, Into(second));
  EXPECT_FALSE(second.status.has_value());
  EXPECT_EQ(piece_->WhyWaits(0).message(), "rank 0 at clock 2 waits for rank 1 at 0 (sync)");
  const Seen third = Push(0, {1, 0});  // It would be one more to keep.
  EXPECT_EQ(third.status->code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(third.status->message(), HasSubstr("does not wait for the one before"));
  Push(1, {1, 0});
  EXPECT_TRUE(second.status->ok());
  EXPECT_TRUE(second.parameters.empty());
  EXPECT_TRUE(piece_->WhyWaits(0).ok());
  Push(1, {1, 0});
  EXPECT_THAT(Values(0), ElementsAre(8, 20));
}

// By whatever lets the clock of the others go on.
TEST_F(DensePieceTest, APushThatIsAheadWaitsForNoneThatHasLeft) {
  for (const bool is_lost : {false, true}) {
    Open(Dense(Consistency::kSync, 2));
    Push(0, {1, 0});
    Seen second;
    piece_->Push(0, Bytes({1, 0}), false, Into(second));
    EXPECT_FALSE(second.status.has_value());
    is_lost ? piece_->Lose(1, Status::PeerLost("rank 1 has died")) : piece_->Finish(1);
    EXPECT_EQ(second.status->code(), is_lost ? StatusCode::kPeerLost : StatusCode::kOk);
  }
}

TEST_F(DensePieceTest, ATableWithoutARuleRefusesEachPushAndIsPulled) {
  for (const Consistency consistency :
       {Consistency::kSync, Consistency::kSsp, Consistency::kAsync}) {
    TableSpec spec = Dense(consistency, 2);
    spec.rule = {kNoRule, {}};
    Open(spec);
    for (const std::vector<float>& gradient : {std::vector<float>{1, 1}, {1, 1, 1}, {}}) {
      const Seen seen = Push(0, gradient);
      EXPECT_EQ(seen.status->code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(seen.status->message(), HasSubstr("table 'fc' has no rule that applies a push"));
    }
    EXPECT_THAT(Values(0), ElementsAre(10, 20));
  }
}

TEST_F(DensePieceTest, ABackupWorkersLatePushIsDropped) {
  Open(Dense(Consistency::kSync, 3, 1));
  Push(0, {2, 0});
  Push(2, {4, 0});
  EXPECT_THAT(Values(0), ElementsAre(7, 20));
  Seen late;
  PushPull(1, {100, 100}, late);
  EXPECT_THAT(late.parameters, ElementsAre(7, 20));
}

// After one late push it is as fast as the others again.
TEST_F(DensePieceTest, ABackupWorkerGoesOnFromThePresentClock) {
  Open(Dense(Consistency::kSync, 3, 1));
  for (int clock = 0; clock < 5; ++clock) {
    Push(0, {0, 0});
    Push(2, {0, 0});
  }
  Push(1, {100, 100});
  Push(1, {3, 3});
  Push(0, {1, 1});
  EXPECT_THAT(Values(1), ElementsAre(8, 18));
}

// The one that has left is the one that is not waited for.
TEST_F(DensePieceTest, AWorkerThatHasLeftIsTheBackup) {
  for (const bool is_lost : {false, true}) {
    Open(Dense(Consistency::kSync, 3, 1));
    is_lost ? piece_->Lose(2, Status::PeerLost("rank 2 has died")) : piece_->Finish(2);
    Seen first;
    PushPull(0, {1, 1}, first);
    EXPECT_FALSE(first.status.has_value());
    Push(1, {3, 3});
    EXPECT_THAT(first.parameters, ElementsAre(8, 18));
  }
}

TEST_F(DensePieceTest, AsyncAppliesEachPushAlone) {
  Open(Dense(Consistency::kAsync, 2));
  Seen seen;
  PushPull(1, {1, 1}, seen);
  EXPECT_THAT(seen.parameters, ElementsAre(9, 19));
  Push(1, {1, 1});
  EXPECT_THAT(Values(0), ElementsAre(8, 18));
}

TEST_F(DensePieceTest, SspHoldsAWorkerThatIsTooFarAhead) {
  Open(Dense(Consistency::kSsp, 2, 1));
  Seen free;
  PushPull(0, {1, 0}, free);
  EXPECT_TRUE(free.status.has_value());
  Seen held;
  PushPull(0, {1, 0}, held);
  EXPECT_FALSE(held.status.has_value());  // Its push is applied all the same.
  EXPECT_THAT(Values(1), ElementsAre(8, 20));
  EXPECT_EQ(piece_->WhyWaits(0).message(), "rank 0 at clock 2 waits for rank 1 at 0 (ssp(1))");
  Push(1, {0, 0});
  EXPECT_TRUE(held.status.has_value());
}

TEST_F(DensePieceTest, AWorkerThatHasFinishedHoldsNoneUp) {
  for (const Consistency consistency : {Consistency::kSsp, Consistency::kSync}) {
    Open(Dense(consistency, 2));
    Seen held;
    PushPull(0, {1, 0}, held);
    EXPECT_FALSE(held.status.has_value());
    piece_->Finish(1);
    EXPECT_THAT(held.parameters, ElementsAre(9, 20));
    const Seen late = Push(1, {1, 1});
    EXPECT_EQ(late.status->code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(DensePieceTest, WorkersThatResumeAreLevel) {
  for (const Consistency consistency : {Consistency::kSsp, Consistency::kSync}) {
    Open(Dense(consistency, 2));
    Push(0, {1, 0});
    piece_->Finish(1);
    Push(0, {1, 0});
    piece_->Finish(0);
    piece_->Resume(1);
    piece_->Resume(0);
    Seen first;
    PushPull(1, {2, 2}, first);
    EXPECT_FALSE(first.status.has_value());  // It waits for worker 0, and not for two older clocks.
    Push(0, {4, 4});
    EXPECT_TRUE(first.status->ok());
    const bool is_mean = consistency == Consistency::kSync;
    EXPECT_THAT(Values(0), is_mean ? ElementsAre(5, 17) : ElementsAre(2, 14));
  }
}

TEST_F(DensePieceTest, ALostWorkerEndsASyncTableAndNoOther) {
  const Status why = Status::PeerLost("rank 1 has died");
  Open(Dense(Consistency::kSync, 2));
  Seen held;
  PushPull(0, {1, 0}, held);
  piece_->Lose(1, why);
  EXPECT_EQ(held.status->code(), StatusCode::kPeerLost);
  EXPECT_EQ(Push(0, {1, 1}).status->code(), StatusCode::kPeerLost);

  Open(Dense(Consistency::kSync, 3, 1));
  Seen covered;
  PushPull(0, {1, 0}, covered);
  PushPull(2, {1, 0}, held = {});
  piece_->Lose(1, why);
  EXPECT_THAT(covered.parameters, ElementsAre(9, 20));

  Open(Dense(Consistency::kSsp, 2, 0));
  Seen waits;
  PushPull(0, {1, 0}, waits);
  piece_->Lose(1, why);
  EXPECT_THAT(waits.parameters, ElementsAre(9, 20));
}

TEST_F(DensePieceTest, APushWithoutAGradientMovesTheClockAlone) {
  Open(Dense(Consistency::kSync, 2));
  Seen seen;
  piece_->Push(0, {}, false, Into(seen));
  Push(1, {4, 4});
  EXPECT_THAT(Values(0), ElementsAre(6, 16));  // The mean of what there is.
}

TEST_F(DensePieceTest, AGradientOfAnotherSizeIsRefusedBeforeItTouchesAnything) {
  Open(Dense(Consistency::kAsync, 1));
  const Seen seen = Push(0, {1, 1, 1});
  EXPECT_EQ(seen.status->code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(seen.status->message(), HasSubstr("12 bytes, expected 8"));
  EXPECT_THAT(Values(0), ElementsAre(10, 20));
}

// What waits is answered with what the parameters are later, and needs its gradient no more.
TEST_F(DensePieceTest, AnAnswerThatWaitsHasTheUpdatesOfOthers) {
  Open(Dense(Consistency::kSsp, 2));
  std::vector<float> window = {1, 1};
  bool is_released = false;
  bool is_copied = false;
  Payload lent({reinterpret_cast<uint8_t*>(window.data()), 8},
               {.on_release = [&] { is_released = true; }, .on_copied = [&] { is_copied = true; }});
  Seen seen;
  piece_->Push(0, std::move(lent), true, Into(seen));
  EXPECT_FALSE(seen.status.has_value());
  EXPECT_TRUE(is_released);
  EXPECT_TRUE(is_copied);
  Push(1, {2, 2});
  EXPECT_THAT(seen.parameters, ElementsAre(7, 17));
  EXPECT_THAT(window, ElementsAre(1, 1));
}

// Where it lay the worker writes the next one.
TEST_F(DensePieceTest, WhatWaitsIsCopiedWhenRoomIsShortOrItIsAnswered) {
  Open(Dense(Consistency::kSync, 2));
  std::vector<float> window = {3, 1};
  bool is_released = false;
  const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(window.data()), 8);
  const auto lent = [&](bool is_short) {
    is_released = false;
    return Payload(bytes,
                   {.on_release = [&] { is_released = true; }, .is_short_of_room = is_short});
  };
  Seen seen;
  piece_->Push(0, lent(false), true, Into(seen));
  EXPECT_FALSE(is_released);
  Push(1, {1, 3});
  EXPECT_TRUE(is_released);
  EXPECT_THAT(window, ElementsAre(8, 18)) << "the answer lies where the gradient was";
  window = {3, 1};
  for (const bool pulls : {true, false}) {
    Seen other;
    piece_->Push(0, lent(true), pulls, Into(other));
    EXPECT_TRUE(is_released);
    window = {99, 99};
    Push(1, {1, 3});
    window = {3, 1};
  }
  EXPECT_THAT(Values(0), ElementsAre(4, 14));
}

// Rows.

constexpr int64_t kWidth = 2;

TableSpec Rows(Consistency consistency, int workers, const RowInit& init = {}) {
  TableSpec spec = Dense(consistency, workers);
  spec.elements = spec.piece_elements = 0;
  spec.rows = 1'000'000;
  spec.width = kWidth;
  spec.init = init;
  return spec;
}

Payload Request(const std::vector<int64_t>& rows, const std::vector<float>& gradients = {}) {
  const uint64_t count = rows.size();
  std::vector<uint8_t> bytes(8 + rows.size() * 8 + gradients.size() * 4);
  std::memcpy(bytes.data(), &count, 8);
  std::memcpy(bytes.data() + 8, rows.data(), rows.size() * 8);
  if (!gradients.empty()) {
    std::memcpy(bytes.data() + 8 + rows.size() * 8, gradients.data(), gradients.size() * 4);
  }
  return Payload(std::move(bytes));
}

std::vector<float> Read(Piece& piece, const std::vector<int64_t>& rows) {
  Seen seen;
  piece.Pull(0, Request(rows), Into(seen));
  EXPECT_TRUE(seen.status.has_value() && seen.status->ok());
  return seen.parameters;
}

TEST(RowPiece, DuplicatesAreAddedAndOtherRowsStay) {
  const TableSpec spec = Rows(Consistency::kAsync, 1);
  RowPiece piece(spec);
  Seen seen;
  piece.Push(0, Request({7, 3, 7}, {1, 2, 10, 20, 3, 4}), true, Into(seen));
  EXPECT_THAT(seen.parameters, ElementsAre(-4, -6, -10, -20, -4, -6));
  EXPECT_THAT(Read(piece, {3, 999'999}), ElementsAre(-10, -20, 0, 0));
}

// Not for that of rows that the worker has pulled in between.
TEST(RowPiece, ALateGradientIsRepairedForTheDelayOfItsOwnRow) {
  TableSpec spec = Rows(Consistency::kAsync, 2);
  spec.rule = {"dc_asgd", {{"lr", 1}, {"lam", 2}, {"clip", 0}}};
  RowPiece piece(spec);
  Read(piece, {5});
  Seen seen;
  piece.Push(1, Request({5}, {4, 4}), false, Into(seen));  // w = -4.
  Read(piece, {6});
  piece.Push(0, Request({5}, {1, 1}), true, Into(seen = {}));
  EXPECT_THAT(seen.parameters, ElementsAre(3, 3));  // -4 - (1 + 2·1·(-4 - 0)).
}

TEST(RowPiece, ATableWithoutARuleRefusesEachPushAndIsPulled) {
  TableSpec spec = Rows(Consistency::kAsync, 1);
  spec.rule = {kNoRule, {}};
  RowPiece piece(spec);
  Seen seen;
  piece.Push(0, Request({7}, {1, 2}), true, Into(seen));
  EXPECT_EQ(seen.status->code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Read(piece, {7}), ElementsAre(0, 0));
}

TEST(RowPiece, SyncAppliesTheMeanOverTheWorkers) {
  const TableSpec spec = Rows(Consistency::kSync, 2);
  RowPiece piece(spec);
  Seen first;
  piece.Push(1, Request({5, 6}, {2, 2, 4, 4}), true, Into(first));
  Seen second;
  piece.Push(0, Request({5}, {4, 4}), false, Into(second));
  EXPECT_THAT(first.parameters, ElementsAre(-3, -3, -2, -2));
}

TEST(RowPiece, ARowStartsTheSameWheneverItIsTouched) {
  const RowInit init{RowInit::Kind::kUniform, 0.5, 42};
  const TableSpec spec = Rows(Consistency::kAsync, 1, init);
  RowPiece early(spec);
  RowPiece late(spec);
  for (int64_t row = 0; row < 5000; ++row) Read(late, {row});
  EXPECT_EQ(Read(early, {4999}), Read(late, {4999}));
  EXPECT_NE(Read(early, {1}), Read(early, {2}));
}

TEST(RowPiece, StartValuesHaveTheDistributionTheyAreSaidToHave) {
  for (const RowInit::Kind kind : {RowInit::Kind::kUniform, RowInit::Kind::kNormal}) {
    const TableSpec spec = Rows(Consistency::kAsync, 1, {kind, 2.0, 1});
    double sum = 0;
    double squares = 0;
    std::vector<float> values(1000);
    for (int64_t row = 0; row < 100; ++row) {
      FillRow(spec, row, values);
      for (const float value : values) {
        sum += value;
        squares += static_cast<double>(value) * value;
      }
    }
    const double variance = kind == RowInit::Kind::kUniform ? 4.0 / 3 : 4.0;
    EXPECT_NEAR(sum / 1e5, 0, 0.03);
    EXPECT_NEAR(squares / 1e5, variance, 0.05);
  }
}

TEST(RowPiece, RowsThatAreNoneAndGradientsThatDoNotFitAreRefused) {
  const TableSpec spec = Rows(Consistency::kAsync, 1);
  RowPiece piece(spec);
  const std::vector<std::pair<Payload, std::string>> wrong = [] {
    std::vector<std::pair<Payload, std::string>> cases;
    cases.emplace_back(Request({-1}, {1, 1}), "row -1 is not one of its 1000000 rows");
    cases.emplace_back(Request({1'000'000}, {1, 1}), "row 1000000 is not one");
    cases.emplace_back(Request({1, 2}, {1, 1}), "2 rows came with 8 bytes of gradients");
    cases.emplace_back(Request({1}), "without gradients");
    cases.emplace_back(Payload(std::vector<uint8_t>{1, 2, 3}), "3 bytes");
    return cases;
  }();
  for (const auto& [payload, text] : wrong) {
    Seen seen;
    const std::span<const uint8_t> bytes = payload.bytes();
    piece.Push(0, Payload(std::vector<uint8_t>(bytes.begin(), bytes.end())), false, Into(seen));
    EXPECT_EQ(seen.status->code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(seen.status->message(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace mydist::ps
