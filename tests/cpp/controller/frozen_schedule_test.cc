// The pure parts of the frozen schedule, one rule at a time; all together: frozen_property_test.
#include "controller/frozen/frozen_schedule.h"

#include <gtest/gtest.h>

#include <map>

#include "controller/frozen/frozen_mode.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

using Move = FrozenSchedule::Move;
using std::chrono::milliseconds;
using std::chrono::seconds;

FrozenBucket MakeBucket(const std::vector<std::string>& names, std::vector<int32_t> ranks,
                        ProcessSetId set = 0) {
  FrozenBucket bucket;
  bucket.bucket.process_set = set;
  bucket.ranks = std::move(ranks);
  for (const std::string& name : names) {
    Request request = MakeRequest(name);
    request.process_set = set;
    bucket.bucket.tensors.push_back(std::make_shared<const Agreement>(Agreement{request, {}}));
  }
  return bucket;
}

TEST(VoteWordTest, SurvivesPacking) {
  for (const VoteWord word : {VoteWord{}, VoteWord{1, 0, true}, VoteWord{7, 123456789, false},
                              VoteWord{(1 << 24) - 1, (uint64_t{1} << 39) - 1, true}}) {
    EXPECT_EQ(VoteWord::Unpack(word.Pack()), word);
  }
}

// Rank 1 of three; ab and c are of all, d of ranks 0 and 2, e of 1 and 2.
class FrozenScheduleTest : public ::testing::Test {
 protected:
  FrozenScheduleTest() : schedule_(1, {}, {}) {
    schedule_.Freeze(4,
                     {MakeBucket({"a", "b"}, {0, 1, 2}), MakeBucket({"d"}, {0, 2}, 1),
                      MakeBucket({"c"}, {0, 1, 2}), MakeBucket({"e"}, {1, 2}, 2)},
                     now_);
  }

  void Submit(const std::string& name, ProcessSetId set = 0) {
    Request request = MakeRequest(name);
    request.process_set = set;
    schedule_.Submit(request, now_);
  }
  void Say(int32_t rank, uint64_t ready_count, bool is_broken = false, uint32_t freeze = 4) {
    words_[rank] = {freeze, ready_count, is_broken};
  }
  Move Advance() {
    return schedule_.Advance([this](Voice, int32_t rank) { return words_[rank]; }, now_);
  }
  std::string TakeHeld() {
    std::string names;
    for (const Request& request : schedule_.TakeHeld()) names += request.name;
    return names;
  }

  TimePoint now_ = TimePoint() + seconds(1000);
  std::map<int32_t, VoteWord> words_;
  FrozenSchedule schedule_;
};

// Rank 0 of two, alone with what it submits: the other one is always READY.
class FrozenCallNumberTest : public ::testing::Test {
 protected:
  FrozenCallNumberTest() : schedule_(0, {}, {}) {
    FrozenBucket first = MakeBucket({"a", "x.noname.9"}, {0, 1});
    first.bucket.growths = {0, 2};
    FrozenBucket second = MakeBucket({"x.noname.10"}, {0, 1});
    second.bucket.growths = {2};
    schedule_.Freeze(1, {first, second}, now_);
  }

  void Submit(const std::string& name) { schedule_.Submit(MakeRequest(name), now_); }
  Move Advance() {
    return schedule_.Advance([](Voice, int32_t) { return VoteWord{1, 1000, false}; }, now_);
  }
  std::string Execute() {
    EXPECT_EQ(Advance(), Move::kReady);
    EXPECT_EQ(Advance(), Move::kExecute);
    std::string names;
    for (const auto& agreement : schedule_.TakeExecuted().tensors) {
      names += agreement->request.name + " ";
    }
    return names;
  }

  TimePoint now_ = TimePoint() + seconds(1000);
  FrozenSchedule schedule_;
};

TEST_F(FrozenCallNumberTest, GrowsFromStepToStep) {
  for (int step = 0; step < 60; ++step) {
    const std::string first = "x.noname." + std::to_string(9 + 2 * step);
    const std::string second = "x.noname." + std::to_string(10 + 2 * step);
    Submit(first);
    Submit(second);  // Ahead of its bucket.
    Submit("a");
    EXPECT_TRUE(schedule_.Holds(MakeRequest(second)));
    EXPECT_EQ(Execute(), "a " + first + " ");
    EXPECT_FALSE(schedule_.Holds(MakeRequest(first)));
    EXPECT_EQ(Execute(), second + " ");
  }
  EXPECT_EQ(schedule_.step_count(), 60u);
}

// No program of ours makes such a step; a user's names may.
TEST_F(FrozenCallNumberTest, MayBeThatOfAnotherTurn) {
  FrozenSchedule schedule(0, {}, {});
  FrozenBucket bucket = MakeBucket({"x.noname.5", "x.noname.6"}, {0, 1});
  bucket.bucket.growths = {1, 1};
  schedule.Freeze(1, {bucket}, now_);
  const auto ready = [](Voice, int32_t) { return VoteWord{1, 1000, false}; };
  for (int step = 0; step < 40; ++step) {
    for (const int number : {5 + step, 6 + step}) {
      schedule.Submit(MakeRequest("x.noname." + std::to_string(number)), now_);
    }
    ASSERT_EQ(schedule.Advance(ready, now_), Move::kReady);
    ASSERT_EQ(schedule.Advance(ready, now_), Move::kExecute);
  }
}

TEST_F(FrozenScheduleTest, ExecutesWhenAllMembersAreReadyAndPassesOverOthersBuckets) {
  Submit("b");
  Submit("c");
  EXPECT_EQ(Advance(), Move::kNone);
  Submit("a");
  ASSERT_EQ(Advance(), Move::kReady);
  EXPECT_EQ(schedule_.word(Voice::kRank), (VoteWord{4, 1, false}));
  EXPECT_TRUE(schedule_.HasUndecidedVote());
  Say(0, 1);
  EXPECT_EQ(Advance(), Move::kNone);
  Say(2, 1);
  ASSERT_EQ(Advance(), Move::kExecute);
  EXPECT_EQ(schedule_.TakeExecuted().tensors.size(), 2u);
  ASSERT_EQ(Advance(), Move::kReady);
  EXPECT_EQ(schedule_.word(Voice::kRank).ready_count, 3u);
}

TEST_F(FrozenScheduleTest, GoesRoundAndRoundAndCountsSteps) {
  for (uint64_t step = 0; step < 3; ++step) {
    EXPECT_EQ(schedule_.step_count(), step);
    for (const char* name : {"a", "b", "c"}) Submit(name);
    Submit("e", 2);
    Say(0, 4 * step + 4);
    Say(2, 4 * step + 4);
    for (int bucket = 0; bucket < 3; ++bucket) {
      ASSERT_EQ(Advance(), Move::kReady);
      ASSERT_EQ(Advance(), Move::kExecute);
    }
    EXPECT_EQ(Advance(), Move::kNone);
  }
  EXPECT_EQ(schedule_.step_count(), 3u);
}

TEST_F(FrozenScheduleTest, OneBreakThawsWhateverTheOthersSay) {
  Submit("a");
  Submit("b");
  Submit("c");
  ASSERT_EQ(Advance(), Move::kReady);
  Say(2, 0, true);
  ASSERT_EQ(Advance(), Move::kThaw);
  EXPECT_EQ(schedule_.word(Voice::kRank), (VoteWord{4, 1, true}));
  EXPECT_FALSE(schedule_.active());
  EXPECT_EQ(TakeHeld(), "abc");
}

TEST_F(FrozenScheduleTest, ABreakAtALaterBucketDoesNotTouchThisOne) {
  Submit("a");
  Submit("b");
  ASSERT_EQ(Advance(), Move::kReady);
  Say(0, 1, true);
  Say(2, 1, true);
  EXPECT_EQ(Advance(), Move::kExecute);
}

TEST_F(FrozenScheduleTest, WordsOfAnotherFreezeSayNothing) {
  Submit("a");
  Submit("b");
  ASSERT_EQ(Advance(), Move::kReady);
  Say(0, 9, false, 3);
  Say(2, 0, true, 3);
  EXPECT_EQ(Advance(), Move::kNone);
}

TEST_F(FrozenScheduleTest, AReadyVoteIsNotTakenBack) {
  Submit("a");
  Submit("b");
  ASSERT_EQ(Advance(), Move::kReady);
  schedule_.Break();
  EXPECT_EQ(Advance(), Move::kNone);
  Say(0, 1);
  Say(2, 1);
  EXPECT_EQ(Advance(), Move::kExecute);
  EXPECT_EQ(Advance(), Move::kThaw);
}

TEST_F(FrozenScheduleTest, BreaksOnWhatTheScheduleDoesNotHave) {
  Submit("b");
  Submit("new");
  EXPECT_EQ(Advance(), Move::kThaw);
  EXPECT_EQ(TakeHeld(), "bnew");
}

TEST_F(FrozenScheduleTest, BreaksOnAnotherShapeOpOrSet) {
  const auto differs = [&](auto change) {
    FrozenSchedule schedule(1, {}, {});
    schedule.Freeze(1, {MakeBucket({"a"}, {0, 1})}, now_);
    Request request = MakeRequest("a");
    change(request);
    schedule.Submit(request, now_);
    return schedule.Advance([](Voice, int32_t) { return VoteWord(); }, now_);
  };
  EXPECT_EQ(differs([](Request&) {}), Move::kReady);
  EXPECT_EQ(differs([](Request& request) { request.shape = Shape({5}); }), Move::kThaw);
  EXPECT_EQ(differs([](Request& request) { request.op = OpKind::kReducescatter; }), Move::kThaw);
  EXPECT_EQ(differs([](Request& request) { request.prescale = 0.5; }), Move::kThaw);
  EXPECT_EQ(differs([](Request& request) { request.process_set = 1; }), Move::kThaw);
}

TEST_F(FrozenScheduleTest, KnowsWhatIsInFlight) {
  Submit("a");
  Submit("new");
  EXPECT_TRUE(schedule_.Holds(MakeRequest("a")));
  EXPECT_TRUE(schedule_.Holds(MakeRequest("new")));
  EXPECT_FALSE(schedule_.Holds(MakeRequest("b")));
}

TEST_F(FrozenScheduleTest, LosesPatienceSoonWhenACallerWaits) {
  Submit("c");
  EXPECT_EQ(Advance(), Move::kNone);
  EXPECT_EQ(schedule_.NextDeadline(), now_ + seconds(1));
  schedule_.SetWaiting(true, now_);
  EXPECT_EQ(schedule_.NextDeadline(), now_ + milliseconds(5));
  now_ += milliseconds(4);
  Submit("a");  // It goes on after all.
  now_ += milliseconds(4);
  EXPECT_EQ(Advance(), Move::kNone);
  now_ += milliseconds(1);
  EXPECT_EQ(Advance(), Move::kThaw);
}

TEST_F(FrozenScheduleTest, LosesPatienceInTheEndWhenNobodyWaits) {
  Submit("c");
  now_ += milliseconds(999);
  EXPECT_EQ(Advance(), Move::kNone);
  now_ += milliseconds(1);
  EXPECT_EQ(Advance(), Move::kThaw);
}

TEST_F(FrozenScheduleTest, RestsForEverWhenNothingIsSubmitted) {
  schedule_.SetWaiting(true, now_);
  EXPECT_EQ(schedule_.NextDeadline(), kNever);
  now_ += seconds(1000);
  EXPECT_EQ(Advance(), Move::kNone);
}

TEST_F(FrozenScheduleTest, WishesForAThawOnceWhenOthersKeepItWaiting) {
  Submit("a");
  Submit("b");
  ASSERT_EQ(Advance(), Move::kReady);
  EXPECT_FALSE(schedule_.TakeWish(now_));
  EXPECT_EQ(schedule_.NextDeadline(), now_ + seconds(1));
  now_ += seconds(1);
  EXPECT_TRUE(schedule_.TakeWish(now_));
  EXPECT_FALSE(schedule_.TakeWish(now_));
  EXPECT_EQ(schedule_.NextDeadline(), kNever);
}

TEST_F(FrozenScheduleTest, ARankWithoutABucketThawsWhenToldTo) {
  FrozenSchedule other(3, {}, {});
  other.Freeze(1, {MakeBucket({"a"}, {0, 1})}, now_);
  const auto read = [](Voice, int32_t) { return VoteWord(); };
  EXPECT_EQ(other.Advance(read, now_), Move::kNone);
  other.Break();
  EXPECT_EQ(other.Advance(read, now_), Move::kThaw);
}

TEST(FrozenPatienceTest, IsShortBesideTheStallWarning) {
  EXPECT_EQ(PatienceFor(seconds(10)).without, seconds(1));
  EXPECT_EQ(PatienceFor(seconds(1)).without, milliseconds(100));
  EXPECT_EQ(PatienceFor(seconds(10)).with_caller, milliseconds(5));
  EXPECT_EQ(PatienceFor(seconds(100)).without, seconds(10));
  EXPECT_EQ(PatienceFor(milliseconds(10)).with_caller, milliseconds(1));
  EXPECT_EQ(PatienceFor(Duration::zero()).without, seconds(1));
}

class FreezePolicyTest : public ::testing::Test {
 protected:
  FreezePolicyTest() { history_.Enable(2); }

  void Step() {
    history_.Add(agreement_);
    history_.EndBatch();
    now_ += milliseconds(1);
  }
  // Steps until it freezes.
  int StepsToFreeze() {
    history_.Reset();
    for (int steps = 1; steps < 1000; ++steps) {
      Step();
      if (policy_.TakeFreeze(history_, now_)) return steps;
    }
    return 0;
  }
  void Thaw() {
    for (int32_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(policy_.TakeNote({rank, true}).ok());
    }
    EXPECT_TRUE(policy_.TakeThaw(false, now_));
    EXPECT_FALSE(policy_.TakeThaw(false, now_));
  }

  TimePoint now_ = TimePoint() + seconds(1);
  std::shared_ptr<const Agreement> agreement_ =
      std::make_shared<const Agreement>(Agreement{MakeRequest("a"), {}});
  StepHistory history_;
  FreezePolicy policy_{2, 4};
};

TEST_F(FreezePolicyTest, WaitsLongerAfterAFreezeThatWasNotWorthIt) {
  EXPECT_EQ(StepsToFreeze(), 4);
  Thaw();
  EXPECT_EQ(StepsToFreeze(), 8);
  Thaw();
  EXPECT_EQ(StepsToFreeze(), 16);
  now_ += seconds(10);
  Thaw();
  EXPECT_EQ(StepsToFreeze(), 8);
}

TEST_F(FreezePolicyTest, FreezesOnlyWhenAllHaveThawed) {
  ASSERT_EQ(StepsToFreeze(), 4);
  ASSERT_TRUE(policy_.TakeNote({1, true}).ok());
  ASSERT_TRUE(policy_.TakeThaw(false, now_));
  EXPECT_EQ(StepsToFreeze(), 0);
  ASSERT_TRUE(policy_.TakeNote({0, true}).ok());
  EXPECT_GT(StepsToFreeze(), 0);
}

TEST_F(FreezePolicyTest, AWishThawsAndDoesNotCountAsThawed) {
  ASSERT_EQ(StepsToFreeze(), 4);
  EXPECT_FALSE(policy_.TakeThaw(false, now_));
  ASSERT_TRUE(policy_.TakeNote({1, false}).ok());
  EXPECT_TRUE(policy_.TakeThaw(false, now_));
  EXPECT_TRUE(policy_.TakeNote({1, true}).ok());
}

TEST_F(FreezePolicyTest, ThawsForWhatAFrozenJobCannotFollow) {
  EXPECT_FALSE(policy_.TakeThaw(true, now_));
  ASSERT_EQ(StepsToFreeze(), 4);
  EXPECT_TRUE(policy_.TakeThaw(true, now_));
}

TEST_F(FreezePolicyTest, RefusesNotesThatCannotBe) {
  EXPECT_EQ(policy_.TakeNote({2, true}).code(), StatusCode::kInternal);
  EXPECT_EQ(policy_.TakeNote({-1, true}).code(), StatusCode::kInternal);
  EXPECT_EQ(policy_.TakeNote({1, true}).code(), StatusCode::kInternal);  // Nothing is frozen.
}

TEST_F(FreezePolicyTest, NeverFreezesWhenSwitchedOff) {
  FreezePolicy policy(2, 0);
  for (int step = 0; step < 20; ++step) {
    Step();
    EXPECT_FALSE(policy.TakeFreeze(history_, now_));
  }
}

}  // namespace
}  // namespace mydist
