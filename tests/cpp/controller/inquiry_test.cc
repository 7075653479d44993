// Whom a rank waits for in the end.
#include "controller/inquiry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace mydist {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using RankList = std::vector<int32_t>;

TEST(Inquiry, EndsAtARankThatGivesNoAnswer) {
  Inquiry inquiry;
  inquiry.Begin(0, RankList{1});
  EXPECT_THAT(inquiry.TakeToAsk(), ElementsAre(1));
  EXPECT_THAT(inquiry.TakeToAsk(), IsEmpty());
  inquiry.TakeAnswer(1, RankList{2});
  EXPECT_THAT(inquiry.TakeToAsk(), ElementsAre(2));
  EXPECT_THAT(inquiry.Silent(), ElementsAre(2));
  EXPECT_THAT(inquiry.Idle(), IsEmpty());
}

TEST(Inquiry, EndsAtARankThatWaitsForNobodyOrForItself) {
  Inquiry inquiry;
  inquiry.Begin(0, RankList{1, 2});
  inquiry.TakeAnswer(1, RankList{});
  inquiry.TakeAnswer(2, RankList{2, 3});
  EXPECT_THAT(inquiry.Idle(), ElementsAre(1, 2));
  EXPECT_THAT(inquiry.Silent(), ElementsAre(3));
  EXPECT_THAT(inquiry.Ends(), ElementsAre(3, 1, 2));
}

TEST(Inquiry, HasNoEndInARing) {
  Inquiry inquiry;
  inquiry.Begin(0, RankList{1});
  inquiry.TakeAnswer(1, RankList{2});
  inquiry.TakeAnswer(2, RankList{0});
  EXPECT_THAT(inquiry.Silent(), IsEmpty());
  EXPECT_THAT(inquiry.Idle(), IsEmpty());
  EXPECT_THAT(inquiry.Ends(), ElementsAre(1));  // So it is not taken for idle.
}

TEST(Inquiry, TakesNoAnswerToWhatItHasNotAsked) {
  Inquiry inquiry;
  inquiry.Begin(0, RankList{1});
  inquiry.TakeAnswer(5, RankList{6});
  inquiry.TakeAnswer(1, RankList{2});
  inquiry.TakeAnswer(1, RankList{7});  // A second one.
  EXPECT_THAT(inquiry.Silent(), ElementsAre(2));
  inquiry.Begin(0, RankList{0, 3});
  EXPECT_THAT(inquiry.Silent(), ElementsAre(3));
  EXPECT_THAT(inquiry.Idle(), ElementsAre(0));
}

// Every rank waits for the one before it, and rank 0 is stopped. Questions and answers go in
// rounds.
TEST(Inquiry, FindsTheEndOfALongChainInFewRounds) {
  constexpr int32_t kRanks = 64;
  std::vector<Inquiry> inquiries(kRanks);
  for (int32_t rank = 1; rank < kRanks; ++rank) {
    inquiries[static_cast<size_t>(rank)].Begin(rank, RankList{rank - 1});
  }
  int rounds = 0;
  for (bool asks = true; asks; ++rounds) {
    asks = false;
    std::map<int32_t, RankList> answers;
    for (int32_t rank = 1; rank < kRanks; ++rank) {
      answers[rank] = inquiries[static_cast<size_t>(rank)].Ends();
    }
    for (int32_t rank = 1; rank < kRanks; ++rank) {
      Inquiry& inquiry = inquiries[static_cast<size_t>(rank)];
      for (const int32_t asked : inquiry.TakeToAsk()) {
        asks = true;
        if (asked != 0) inquiry.TakeAnswer(asked, answers[asked]);
      }
    }
  }
  for (int32_t rank = 1; rank < kRanks; ++rank) {
    EXPECT_THAT(inquiries[static_cast<size_t>(rank)].Ends(), ElementsAre(0)) << rank;
  }
  EXPECT_LE(rounds, 8);  // log2(64), a look that finds nothing more, and the stopped one.
}

}  // namespace
}  // namespace mydist
