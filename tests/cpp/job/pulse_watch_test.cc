#include "job/pulse_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <vector>

namespace mydist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLimit = seconds(10);

// One watch whose peers send when it looks, unless they have stopped.
class Watch {
 public:
  explicit Watch(const std::vector<int>& peers, Duration limit = kLimit, bool are_here = true)
      : peers_(peers), watch_(Peers(peers, are_here), limit), sends_(peers.size(), true) {}

  void Stop(size_t index) { sends_[index] = false; }
  void GoOn(size_t index) { sends_[index] = true; }
  TimePoint now() const { return now_; }

  // Looks until something is found or `limit` has passed; how late each look is.
  std::vector<PeerFinding> RunFor(Duration limit, Duration late = Duration::zero(),
                                  const std::function<void()>& at_each = nullptr) {
    const TimePoint end = now_ + limit;
    while (now_ < end) {
      now_ = std::max(now_, watch_.NextLook()) + late;
      ++number_;
      for (size_t i = 0; i < peers_.size(); ++i) {
        if (sends_[i]) watch_.Hear(i, number_);
      }
      if (at_each) at_each();
      ++looks_;
      if (auto found = watch_.Look(now_); !found.empty()) return found;
    }
    return {};
  }
  PulseWatch& watch() { return watch_; }
  int looks() const { return looks_; }

 private:
  static std::vector<PulsePeer> Peers(const std::vector<int>& ranks, bool are_here) {
    std::vector<PulsePeer> peers;
    for (const int rank : ranks) peers.push_back({rank, are_here});
    return peers;
  }

  const std::vector<int> peers_;
  PulseWatch watch_;
  std::vector<bool> sends_;
  TimePoint now_ = TimePoint() + seconds(1000);
  uint64_t number_ = 0;
  int looks_ = 0;
};

TEST(PulseWatchTest, FindsASilentPeerWithinTheLimitAndOnce) {
  for (const Duration limit : {Duration(seconds(10)), Duration(seconds(2))}) {
    Watch watch({4, 7}, limit);
    EXPECT_TRUE(watch.RunFor(seconds(60)).empty());
    watch.Stop(1);
    const TimePoint begin = watch.now();
    const auto found = watch.RunFor(seconds(60));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].rank, 7);
    EXPECT_EQ(found[0].kind, PeerFinding::Kind::kSilent);
    EXPECT_EQ(found[0].silence, limit);
    EXPECT_LE(watch.now() - begin, limit);
    EXPECT_GE(watch.now() - begin, limit * 8 / 10);
    EXPECT_TRUE(watch.RunFor(seconds(60)).empty());
  }
}

TEST(PulseWatchTest, APeerThatGoesOnInTimeIsNotFound) {
  Watch watch({1});
  EXPECT_TRUE(watch.RunFor(seconds(5)).empty());
  for (int i = 0; i < 20; ++i) {
    watch.Stop(0);
    EXPECT_TRUE(watch.RunFor(seconds(8)).empty());
    watch.GoOn(0);
    EXPECT_TRUE(watch.RunFor(seconds(1)).empty());
  }
}

TEST(PulseWatchTest, LooksOnceASecondWhenIdle) {
  Watch watch({1, 2, 3});
  EXPECT_TRUE(watch.RunFor(seconds(5)).empty());
  const int before = watch.looks();
  EXPECT_TRUE(watch.RunFor(seconds(100)).empty());
  EXPECT_LE(watch.looks() - before, 100);
}

// All ranks of a machine that is paused or too busy are late together.
TEST(PulseWatchTest, ItsOwnLatenessIsNoSilenceOfOthers) {
  Watch watch({1});
  EXPECT_TRUE(watch.RunFor(seconds(5)).empty());
  watch.Stop(0);
  EXPECT_TRUE(watch.RunFor(seconds(1), seconds(3600)).empty());
  EXPECT_TRUE(watch.RunFor(seconds(30), seconds(5)).empty()) << "these are five looks";
  watch.GoOn(0);
  EXPECT_TRUE(watch.RunFor(seconds(600), seconds(30)).empty());
}

TEST(PulseWatchTest, ACopyIsNoSignOfLife) {
  Watch watch({1});
  EXPECT_TRUE(watch.RunFor(seconds(5)).empty());
  watch.Stop(0);
  const auto found = watch.RunFor(seconds(60), {}, [&] { watch.watch().Hear(0, 3); });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, PeerFinding::Kind::kSilent);
}

TEST(PulseWatchTest, TwoRefusalsAreADeathAndOneIsNone) {
  Watch watch({5});
  EXPECT_TRUE(watch.RunFor(seconds(5)).empty());
  watch.watch().Refuse(0);
  EXPECT_TRUE(watch.RunFor(milliseconds(1)).empty());
  EXPECT_TRUE(watch.RunFor(seconds(20)).empty()) << "it is heard again";
  watch.Stop(0);
  const TimePoint begin = watch.now();
  const auto found = watch.RunFor(seconds(60), {}, [&] { watch.watch().Refuse(0); });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 5);
  EXPECT_EQ(found[0].kind, PeerFinding::Kind::kDead);
  EXPECT_LE(watch.now() - begin, milliseconds(1100));
}

// Between hosts a firewall may refuse heartbeats of this rank while the peer's still come.
TEST(PulseWatchTest, OfAnotherHostOnlyARefusedPeerThatIsQuietIsDead) {
  Watch watch({5}, kLimit, false);
  EXPECT_TRUE(watch.RunFor(seconds(5)).empty());
  const auto refuse = [&] { watch.watch().Refuse(0); };
  EXPECT_TRUE(watch.RunFor(seconds(30), {}, refuse).empty());
  watch.Stop(0);
  const TimePoint begin = watch.now();
  const auto found = watch.RunFor(seconds(60), {}, refuse);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, PeerFinding::Kind::kDead);
  EXPECT_LE(watch.now() - begin, seconds(4));
}

TEST(PulseWatchTest, InAHurryARefusalIsFoundAtOnce) {
  Watch watch({5}, kLimit, false);
  EXPECT_TRUE(watch.RunFor(seconds(5)).empty());
  watch.Stop(0);
  EXPECT_TRUE(watch.watch().AwaitsRefusal(0));
  watch.watch().Hurry(watch.now());
  const TimePoint begin = watch.now();
  const auto found = watch.RunFor(seconds(60), {}, [&] { watch.watch().Refuse(0); });
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, PeerFinding::Kind::kDead);
  EXPECT_LE(watch.now() - begin, milliseconds(200));
  EXPECT_FALSE(watch.watch().AwaitsRefusal(0));
}

// Looks that come early, as in a hurry, count what has passed and no more.
TEST(PulseWatchTest, HurryMakesNoSilence) {
  Watch watch({5});
  EXPECT_TRUE(watch.RunFor(seconds(5)).empty());
  watch.Stop(0);
  const TimePoint begin = watch.now();
  for (int i = 0; i < 200; ++i) {
    watch.watch().Hurry(watch.now());
    ASSERT_TRUE(watch.watch().Look(watch.now()).empty());
  }
  EXPECT_EQ(watch.RunFor(seconds(60)).size(), 1u);
  EXPECT_GE(watch.now() - begin, seconds(8));
}

// A firewall may let none through, or refuse them all.
TEST(PulseWatchTest, APeerThatWasNeverHeardIsToldAboutAndNotFound) {
  Watch watch({1, 2});
  watch.Stop(0);
  const auto refuse = [&] { watch.watch().Refuse(0); };
  EXPECT_TRUE(watch.RunFor(seconds(9), {}, refuse).empty());
  EXPECT_TRUE(watch.watch().TakeUnheard().empty());
  EXPECT_TRUE(watch.RunFor(seconds(100), {}, refuse).empty());
  EXPECT_EQ(watch.watch().TakeUnheard(), std::vector<int>{1});
  EXPECT_TRUE(watch.watch().TakeUnheard().empty());
}

}  // namespace
}  // namespace mydist
