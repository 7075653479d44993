#include "job/straggler_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <vector>

namespace mydist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Ranks that wait a fixed part of the time, looked at once a second.
class Ranks {
 public:
  explicit Ranks(std::vector<double> shares) : shares_(std::move(shares)) {}

  void Change(std::vector<double> shares) { shares_ = std::move(shares); }
  // News of this rank stay as they are.
  void StopTelling(size_t rank) { silent_ = static_cast<int>(rank); }
  // Seconds at which there were notes, and about whom.
  std::vector<std::pair<int, std::vector<int>>> RunFor(int count) {
    std::vector<std::pair<int, std::vector<int>>> notes;
    for (int i = 0; i < count; ++i) {
      for (size_t rank = 0; rank < shares_.size(); ++rank) {
        progress_.resize(shares_.size());
        RankProgress& one = progress_[rank];
        one.rank = static_cast<int>(rank);
        if (one.rank == silent_) {
          one.age += 1;
        } else {
          one.waited += shares_[rank];
        }
      }
      now_ += seconds(1) + milliseconds(3);
      last_ = watch_.Look(progress_, now_);
      if (last_)
        notes.emplace_back(++second_, last_->ranks);
      else
        ++second_;
      if (last_) note_ = last_;
    }
    return notes;
  }
  const StragglerNote& note() const { return *note_; }

 private:
  std::vector<double> shares_;
  std::vector<RankProgress> progress_;
  int silent_ = -1;
  int second_ = 0;
  TimePoint now_{std::chrono::hours(1)};
  StragglerWatch watch_{seconds(60)};
  std::optional<StragglerNote> last_, note_;
};

using Notes = std::vector<std::pair<int, std::vector<int>>>;

TEST(StragglerWatchTest, OneThatAllWaitForIsNamedOnceThenAfterTwiceTheTime) {
  Ranks ranks({0.3, 0.25, 0.01, 0.31});
  const Notes notes = ranks.RunFor(800);
  ASSERT_EQ(notes.size(), 3u);
  const std::vector<int> expected = {61, 181, 421};  // A minute, then after 2, then after 4.
  for (size_t i = 0; i < notes.size(); ++i) {
    EXPECT_NEAR(notes[i].first, expected[i], 3);
    EXPECT_EQ(notes[i].second, std::vector<int>{2});
  }
  EXPECT_NEAR(ToSeconds(ranks.note().waited), 18, 1);
  EXPECT_NEAR(ToSeconds(ranks.note().watched), 60, 1);
}

TEST(StragglerWatchTest, RanksOfASlowHostAreNamedTogether) {
  Ranks ranks({0.4, 0.4, 0.4, 0.02, 0.03});
  const Notes notes = ranks.RunFor(70);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].second, (std::vector<int>{3, 4}));
}

TEST(StragglerWatchTest, AnotherStragglerIsNamedWithoutAPause) {
  Ranks ranks({0.0, 0.5, 0.5});
  EXPECT_EQ(ranks.RunFor(65).size(), 1u);
  ranks.Change({0.5, 0.5, 0.0});
  const Notes notes = ranks.RunFor(125);
  ASSERT_FALSE(notes.empty());
  EXPECT_EQ(notes.back().second, std::vector<int>{2});
}

TEST(StragglerWatchTest, NothingIsSaidWhereNoRankIsBehind) {
  EXPECT_TRUE(Ranks({0.5, 0.45, 0.5, 0.4}).RunFor(300).empty()) << "all wait for the network";
  EXPECT_TRUE(Ranks({0.1, 0.1, 0.0}).RunFor(300).empty()) << "they wait little";
  EXPECT_TRUE(Ranks({0.0}).RunFor(300).empty());
  EXPECT_TRUE(Ranks({}).RunFor(300).empty());
}

TEST(StragglerWatchTest, NewsThatAreTooOldCountForNobody) {
  Ranks ranks({0.5, 0.5, 0.5});
  ranks.RunFor(1);
  ranks.StopTelling(2);
  EXPECT_TRUE(ranks.RunFor(300).empty());
}

TEST(StragglerWatchTest, TheTextSaysHowLongAndWhatToDo) {
  const StragglerNote note = {.ranks = {5}, .waited = seconds(15), .watched = seconds(60)};
  const std::string text = StragglerText(note, "rank 5 (host h, pid 7)");
  EXPECT_EQ(text.find("the other ranks have waited 15.0 s of the last 60.0 s for rank 5 (host h, "
                      "pid 7), which came to the collectives last. Look for "),
            0u)
      << text;
}

}  // namespace
}  // namespace mydist
