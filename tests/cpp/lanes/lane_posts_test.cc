// Messages between the members of a lane, over the loopback transport.
#include "lanes/lane_posts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "conformance/status_checks.h"
#include "transport/factory.h"

namespace mydist {
namespace {

// What a receive gets.
class Inbox {
 public:
  Inbox() = default;
  explicit Inbox(LanePosts::Follow follow) : follow_(std::move(follow)) {}

  LanePosts::Take Take() {
    return [this](const Status& status, int source, const Bytes& payload) {
      const std::lock_guard lock(mutex_);
      status_ = status;
      source_ = source;
      payload_ = payload;
      ++count_;
      came_.notify_all();
      return follow_;
    };
  }
  Bytes Await() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [this] { return count_ > 0; });
    return payload_;
  }
  Status status() { return Await(), status_; }
  int source() { return Await(), source_; }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  const LanePosts::Follow follow_;
  std::mutex mutex_;
  std::condition_variable came_;
  Status status_;
  int source_ = -2;
  Bytes payload_;
  int count_ = 0;
};

class LanePostsTest : public ::testing::Test {
 protected:
  static constexpr int kSize = 3;

  LanePostsTest() : connections_(ConnectLoopback(kSize)) {
    for (Connection& connection : connections_) {
      posts_.push_back(std::make_unique<LanePosts>(
          [&connection]() -> Result<ControlPlane*> { return connection.control.get(); }));
    }
  }
  LanePosts& of(int rank) { return *posts_[static_cast<size_t>(rank)]; }

 private:
  std::vector<Connection> connections_;
  std::vector<std::unique_ptr<LanePosts>> posts_;
};

TEST_F(LanePostsTest, MessagesOfOneTagComeInOrderAndTagsInAnyOrder) {
  for (uint8_t number = 0; number < 4; ++number) ExpectOk(of(0).Send(1, number % 2, Bytes{number}));
  for (const auto& [tag, expected] :
       std::vector<std::pair<int, uint8_t>>{{1, 1}, {0, 0}, {0, 2}, {1, 3}}) {
    Inbox inbox;
    of(1).Receive(0, tag, inbox.Take());
    EXPECT_EQ(inbox.Await(), Bytes{expected});
    EXPECT_EQ(inbox.source(), 0);
  }
}

TEST_F(LanePostsTest, AReceiveMayComeFirstAndFromAnySource) {
  Inbox any;
  Inbox other_tag;
  of(1).Receive(LanePosts::kAnySource, 7, any.Take());
  of(1).Receive(2, 8, other_tag.Take());
  ExpectOk(of(2).Send(1, 7, Bytes{42}));
  EXPECT_EQ(any.Await(), Bytes{42});
  EXPECT_EQ(any.source(), 2);
  EXPECT_EQ(other_tag.count(), 0);
  ExpectOk(of(2).Send(1, 8, {}));
  EXPECT_EQ(other_tag.Await(), Bytes{});
}

TEST_F(LanePostsTest, ALongMessageArrivesWhole) {
  Bytes payload(40'000'000);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<uint8_t>(i * 7 >> 3);
  ExpectOk(of(0).Send(2, 0, payload));
  ExpectOk(of(1).Send(2, 0, Bytes{1}));
  Inbox one;
  Inbox other;
  of(2).Receive(1, 0, one.Take());
  of(2).Receive(0, 0, other.Take());
  EXPECT_EQ(one.Await(), Bytes{1});
  EXPECT_EQ(other.Await(), payload);
}

TEST_F(LanePostsTest, ACancelledReceiveTakesNoMessage) {
  Inbox cancelled;
  Inbox next;
  const LanePosts::Ticket ticket = of(1).Receive(0, 0, cancelled.Take());
  EXPECT_TRUE(of(1).Cancel(ticket, Status::Timeout("too late")));
  ExpectError(cancelled.status(), StatusCode::kTimeout, {"too late"});
  EXPECT_FALSE(of(1).Cancel(ticket, Status::Timeout("again")));
  ExpectOk(of(0).Send(1, 0, Bytes{5}));
  of(1).Receive(0, 0, next.Take());
  EXPECT_EQ(next.Await(), Bytes{5});
  EXPECT_EQ(cancelled.count(), 1);
}

TEST_F(LanePostsTest, WhatFollowsAReceiveMayWaitForOneThatWasOpenBefore) {
  Inbox second;
  std::atomic<bool> has_followed{false};
  Inbox first([&] { has_followed = second.Await() == Bytes{2}; });
  of(1).Receive(0, 0, first.Take());
  of(1).Receive(0, 0, second.Take());
  ExpectOk(of(0).Send(1, 0, Bytes{1}));
  EXPECT_EQ(first.Await(), Bytes{1});
  ExpectOk(of(0).Send(1, 0, Bytes{2}));
  while (!has_followed) std::this_thread::yield();
}

TEST_F(LanePostsTest, WhatFollowsReceivesMayWaitForLaterOnes) {
  constexpr int kChains = 20;
  std::vector<std::unique_ptr<Inbox>> later;
  std::vector<std::unique_ptr<Inbox>> first;
  std::atomic<int> followed_count{0};
  for (int tag = 0; tag < kChains; ++tag) {
    later.push_back(std::make_unique<Inbox>());
    Inbox* const next = later.back().get();
    first.push_back(std::make_unique<Inbox>([this, next, tag, &followed_count] {
      of(1).Receive(2, tag, next->Take());
      next->Await();
      ++followed_count;
    }));
    of(1).Receive(0, tag, first.back()->Take());
  }
  for (int tag = 0; tag < kChains; ++tag) ExpectOk(of(0).Send(1, tag, Bytes{1}));
  for (const auto& inbox : first) inbox->Await();  // All of them follow now, and wait.
  for (int tag = kChains - 1; tag >= 0; --tag) ExpectOk(of(2).Send(1, tag, Bytes{2}));
  while (followed_count < kChains) std::this_thread::yield();
}

TEST_F(LanePostsTest, AbortEndsAllReceivesBeforeWhatFollowsOneWaitsForAnother) {
  Inbox second;
  Inbox first([&] { second.Await(); });
  of(1).Receive(0, 0, first.Take());
  of(1).Receive(0, 1, second.Take());
  of(1).Abort(Status::Aborted("the end"));
  ExpectError(second.status(), StatusCode::kAborted, {"the end"});
}

TEST_F(LanePostsTest, AbortEndsWhatIsOpenAndWhatFollows) {
  Inbox open;
  Inbox later;
  of(1).Receive(0, 0, open.Take());
  of(1).Abort(Status::Aborted("the end"));
  ExpectError(open.status(), StatusCode::kAborted, {"the end"});
  of(1).Receive(0, 0, later.Take());
  ExpectError(later.status(), StatusCode::kAborted, {"the end"});
  ExpectError(of(1).Send(0, 0, Bytes{1}), StatusCode::kAborted, {"the end"});
}

}  // namespace
}  // namespace mydist
