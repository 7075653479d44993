#include "controller/frozen/step_history.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <string>

#include "controller/messages/response.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

// Agreements by name; the same one for the same name, as from a cache.
class Agreements {
 public:
  const std::shared_ptr<const Agreement>& Of(const std::string& name, ProcessSetId set = 0) {
    auto& agreement = by_name_[{set, name}];
    if (agreement == nullptr) {
      Request request = MakeRequest(name);
      request.process_set = set;
      agreement = std::make_shared<const Agreement>(Agreement{request, {}});
    }
    return agreement;
  }
  void Forget(const std::string& name) { by_name_.erase({0, name}); }

 private:
  std::map<std::pair<ProcessSetId, std::string>, std::shared_ptr<const Agreement>> by_name_;
};

// "ab c": a batch of a and b, then one of c; upper case: of process set 1.
class StepHistoryTest : public ::testing::Test {
 protected:
  StepHistoryTest() { history_.Enable(2); }

  void Add(const std::string& batches) {
    for (const char c : batches) {
      if (c == ' ') {
        history_.EndBatch();
      } else {
        history_.Add(agreements_.Of(std::string(1, c), c >= 'A' && c <= 'Z' ? 1 : 0));
      }
    }
    history_.EndBatch();
  }
  std::string CutText(size_t length, size_t repeats) const {
    std::string text;
    for (const Bucket& bucket : history_.Cut(length, repeats)) {
      if (!text.empty()) text += " ";
      for (const auto& agreement : bucket.tensors) text += agreement->request.name;
    }
    return text;
  }

  Agreements agreements_;
  StepHistory history_;
};

TEST_F(StepHistoryTest, ANewAgreementIsNotTheOldOne) {
  Add("ab");
  agreements_.Forget("b");
  Add("ab");
  EXPECT_FALSE(history_.FindStep(2, 2));
  Add("ab");
  EXPECT_TRUE(history_.IsStep(2, 2));
  EXPECT_FALSE(history_.IsStep(2, 3));
}

// "ab1b2 ab3b4": named a, then calls 1, 2 and so on without a name; a batch each.
class CallNumberTest : public ::testing::Test {
 protected:
  CallNumberTest() { history_.Enable(2); }

  static Request At(const std::string& token) {
    if (token.size() == 1) return MakeRequest(token);
    return MakeRequest(token.substr(0, 1) + ".noname." + token.substr(1));
  }
  void AddRequest(const Request& request) {
    auto& named = named_[request.name];  // As from a cache.
    if (named == nullptr) named = std::make_shared<const Agreement>(Agreement{request, {}});
    history_.Add(named);
  }
  void Add(const std::vector<std::string>& tokens) {
    for (const std::string& token : tokens) AddRequest(At(token));
    history_.EndBatch();
  }

  std::map<std::string, std::shared_ptr<const Agreement>> named_;
  StepHistory history_;
};

// Wherever the batches are cut, and however many there are.
TEST_F(CallNumberTest, OfCallsInFlightTogetherMakesOneStepHoweverTheyAreCut) {
  uint64_t number = 0;
  const auto add = [&](int count) {
    std::vector<std::string> calls;
    for (int call = 0; call < count; ++call) calls.push_back("x" + std::to_string(++number));
    Add(calls);
  };
  for (int step = 0; step < 10; ++step) {
    EXPECT_EQ(history_.FindStep(10, 10), std::nullopt) << step;
    add(60);
    EXPECT_EQ(history_.FindStep(10, 10), std::nullopt) << step;
    add(40);
  }
  EXPECT_EQ(history_.FindStep(10, 10), 100u);
  history_.Reset();
  for (int step = 0; step < 10; ++step) {
    EXPECT_EQ(history_.FindStep(10, 10), std::nullopt) << step;
    add(100);
  }
  EXPECT_EQ(history_.FindStep(10, 10), 100u);
}

TEST_F(CallNumberTest, IsAllThatMayDiffer) {
  for (int step = 0; step < 4; ++step) {
    Request request = At("x" + std::to_string(step));
    request.shape = Shape({step % 2 + 1});
    AddRequest(request);
    history_.EndBatch();
  }
  EXPECT_FALSE(history_.IsStep(1, 2));
  EXPECT_EQ(history_.FindStep(2, 2), 2u);
  EXPECT_EQ(history_.Cut(2, 2)[1].tensors[0]->request.shape, Shape({2}));
}

TEST_F(CallNumberTest, OfAGroupGrowsInBothNames) {
  for (const char* number : {"8", "9", "10"}) {
    for (const char* member : {".0", ".1"}) {
      Request request = MakeRequest("g.noname." + std::string(number) + member);
      request.group = "g.noname." + std::string(number);
      request.group_size = 2;
      AddRequest(request);
    }
    history_.EndBatch();
  }
  EXPECT_EQ(history_.FindStep(3, 3), 2u);
  const Request next = history_.Cut(2, 3)[0].tensors[1]->request;
  EXPECT_EQ(next.name, "g.noname.11.1");
  EXPECT_EQ(next.group, "g.noname.11");
}

TEST_F(CallNumberTest, OfNamesThatLookAlikeIsNone) {
  for (const char* name : {"x", "x.noname", "x.noname.", "x.noname.a", "x.noname.01",
                           "x.noname.1234567890123456789"}) {
    EXPECT_EQ(CallNumber(MakeRequest(name)), std::nullopt) << name;
    EXPECT_EQ(WithCallNumber({MakeRequest(name), {}}, 5).request.name, name);
  }
  Request request = MakeRequest("x.noname.3");
  EXPECT_EQ(CallNumber(request), 3u);
  request.group = "g.noname.4";
  EXPECT_EQ(CallNumber(request), std::nullopt);
  EXPECT_EQ(CallNumber(MakeRequest("x.noname.1.noname.20.b")), 20u);
}

TEST_F(CallNumberTest, OfCallsThatAllDifferTakesBoundedMemory) {
  for (size_t i = 0; i < 3 * StepHistory::kMaxUnnumbered; ++i) {
    Request request = At("x" + std::to_string(i));
    request.shape = Shape({static_cast<int64_t>(i)});
    history_.Add(std::make_shared<const Agreement>(Agreement{request, {}}));
    EXPECT_LE(history_.tensor_count(), StepHistory::kMaxUnnumbered);
  }
  Add({"a"});
  Add({"a"});
  EXPECT_TRUE(history_.IsStep(1, 2));
}

// A run of equal calls within a step is not as many steps.
TEST_F(CallNumberTest, OfARunIsNoneOfAStepWhenMoreIsLookedAt) {
  uint64_t number = 0;
  const auto add_step = [&] {
    Add({"a"});
    for (int call = 0; call < 4; ++call) {
      EXPECT_EQ(history_.FindStep(2, 6), std::nullopt) << number;
      Add({"x" + std::to_string(++number)});
    }
  };
  add_step();
  add_step();
  EXPECT_TRUE(history_.IsStep(1, 4));
  EXPECT_EQ(history_.FindStep(2, 6), 5u);
}

// Against the obvious search, on short random histories: of two names, or of one and of calls whose
// numbers grow by one or two, or not.
TEST_F(CallNumberTest, AgreesWithTheObviousSearch) {
  std::mt19937 random(5);
  std::array<size_t, 2> found{};
  for (int round = 0; round < 5000; ++round) {
    const bool has_numbers = round % 5 < 3;
    history_.Reset();
    const size_t count = 2 + random() % 20;
    const size_t repeats = 2 + random() % 3;
    uint64_t number = 0;
    for (size_t i = 0; i < count; ++i) {
      if (random() % 8 == 0) ++number;
      if (random() % 3 != 0) ++number;
      if (has_numbers) {
        Add({random() % 4 == 0 ? std::string("a") : "x" + std::to_string(number)});
      } else {
        Add({random() % 2 == 0 ? "a" : "b"});
      }
    }
    std::optional<size_t> expected;
    for (size_t length = count / repeats; length > 0; --length) {
      if (history_.IsStep(length, repeats)) expected = length;
    }
    EXPECT_EQ(history_.FindStep(repeats, repeats), expected) << "round " << round;
    found[has_numbers] += expected ? 1 : 0;
  }
  for (const size_t count : found) EXPECT_GT(count, 200u);
}

// Agreements live as long as a step may be found with them.
TEST_F(StepHistoryTest, WhatNeverComesAgainIsNotKept) {
  std::vector<std::weak_ptr<const Agreement>> retired;
  for (int step = 0; step < 100; ++step) {
    Add("ab");
    retired.push_back(agreements_.Of("b"));
    history_.Retire(agreements_.Of("b").get());
    agreements_.Forget("b");
  }
  for (const auto& agreement : retired) EXPECT_TRUE(agreement.expired());
  Add("abab");
  EXPECT_TRUE(history_.IsStep(2, 2));
}

// Steps that are found are those that would be found if everything were kept.
TEST_F(StepHistoryTest, RetiringHidesNoStep) {
  std::mt19937 random(11);
  size_t found = 0;
  for (int round = 0; round < 3000; ++round) {
    const size_t repeats = 2 + random() % 3;
    StepHistory everything;
    StepHistory trimmed;
    everything.Enable(repeats);
    trimmed.Enable(repeats);
    for (size_t i = 0; i < 30; ++i) {
      const std::string name(1, static_cast<char>('a' + random() % 2));
      if (random() % 12 == 0) {
        trimmed.Retire(agreements_.Of(name).get());
        agreements_.Forget(name);
      }
      everything.Add(agreements_.Of(name));
      trimmed.Add(agreements_.Of(name));
      for (size_t length = 1; length * repeats <= 30; ++length) {
        const bool is_step = everything.IsStep(length, repeats);
        EXPECT_EQ(trimmed.IsStep(length, repeats), is_step) << "round " << round;
        found += is_step ? 1 : 0;
      }
    }
  }
  EXPECT_GT(found, 1000u);
}

TEST_F(StepHistoryTest, CutsTheStepMadeOfTheFewestBatches) {
  Add("a b c d");
  Add("ab cd");
  Add("a bc d");
  EXPECT_EQ(CutText(4, 3), "ab cd");
  Add("a bc d");
  EXPECT_EQ(CutText(4, 2), "a bc d");
}

TEST_F(StepHistoryTest, ABucketIsOfOneProcessSet) {
  Add("aAbB cC");
  Add("aAbB cC");
  EXPECT_EQ(CutText(6, 2), "ab AB c C");
}

TEST_F(StepHistoryTest, ABatchThatBeganInTheStepBeforeIsCutThere) {
  Add("a b");
  Add("ca b");
  Add("ca b c");
  EXPECT_EQ(CutText(3, 2), "a b c");
}

TEST_F(StepHistoryTest, TheHashTellsSchedulesApart) {
  Add("ab ab");
  const auto buckets = history_.Cut(2, 2);
  auto other = buckets;
  EXPECT_EQ(HashOf(buckets), HashOf(other));
  std::swap(other[0].tensors[0], other[0].tensors[1]);
  EXPECT_NE(HashOf(buckets), HashOf(other));
  other = buckets;
  other[0].process_set = 5;
  EXPECT_NE(HashOf(buckets), HashOf(other));
}

TEST_F(StepHistoryTest, ItsMemoryIsBounded) {
  for (size_t i = 0; i < 3 * StepHistory::kMaxTensors; ++i) {
    history_.Add(agreements_.Of(std::to_string(i % 5)));
    history_.EndBatch();
  }
  EXPECT_TRUE(history_.IsStep(5, StepHistory::kMaxTensors / 2 / 5));
  EXPECT_FALSE(history_.IsStep(5, StepHistory::kMaxTensors));
}

}  // namespace
}  // namespace mydist
