#include "controller/control_port.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "conformance/status_checks.h"

namespace mydist {
namespace {

using std::chrono::seconds;

// Gives what it is told to give.
class ToldPlane final : public ControlPlane {
 public:
  Status Send(int, Bytes) override { return Status::Ok(); }
  Result<std::optional<IncomingMessage>> Receive() override {
    if (lost) return *std::exchange(lost, std::nullopt);
    if (messages.empty()) return std::optional<IncomingMessage>();
    IncomingMessage first = std::move(messages.front());
    messages.pop_front();
    return std::optional(std::move(first));
  }
  void Await(TimePoint) override {}
  void Wake() override {}
  void Attend(bool) override {}
  Status Close(TimePoint) override { return Status::Ok(); }

  std::optional<Status> lost;
  std::deque<IncomingMessage> messages;
};

constexpr TimePoint kStart{std::chrono::hours(1)};
TimePoint At(int second) { return kStart + seconds(second); }

struct LeavingJob {
  LeavingJob() {
    port.ExpectLosses();
    plane.lost = Status::PeerLost("rank 1 has died");
  }
  ToldPlane plane;
  ControlPort port{&plane};
};

TEST(ControlPort, ALossWhileRanksLeaveIsAnErrorAfterAGrace) {
  LeavingJob job;
  ExpectOk(job.port.Exchange(At(0)));
  ExpectOk(job.port.Exchange(At(4)));
  EXPECT_EQ(job.port.Exchange(At(5)).message(), "rank 1 has died");
}

TEST(ControlPort, WhatHasJustComeMaySayThatAllHaveLeft) {
  LeavingJob job;
  ExpectOk(job.port.Exchange(At(0)));
  job.plane.messages.push_back({2, {7}});
  ExpectOk(job.port.Exchange(At(5)));
  EXPECT_EQ(job.port.TakeMessages().size(), 1u);
  job.port.Finish();
  ExpectOk(job.port.Exchange(At(20)));
}

TEST(ControlPort, WhatComesAfterALongPauseMaySayThatAllHaveLeft) {
  LeavingJob job;
  ExpectOk(job.port.Exchange(At(0)));
  job.plane.messages.push_back({2, {7}});
  ExpectOk(job.port.Exchange(At(3600)));
  EXPECT_EQ(job.port.TakeMessages().size(), 1u);
}

// As in a collective, which waits for the lost rank.
TEST(ControlPort, AMessageThatIsNotTakenInHoldsALossBackNoLonger) {
  LeavingJob job;
  job.plane.messages.push_back({2, {7}});
  for (int second = 0; second < 10; ++second) ExpectOk(job.port.Exchange(At(second)));
  EXPECT_EQ(job.port.Exchange(At(10)).message(), "rank 1 has died");
}

}  // namespace
}  // namespace mydist
