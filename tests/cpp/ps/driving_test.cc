// Callers that wait move the bytes themselves, and leave them to the client's thread.
#include <gmock/gmock.h>

#include "ps/service.h"

namespace mydist::ps {
namespace {

using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;

constexpr int64_t kTableElements = 5000;

class DrivingTest : public ServiceTest {
 protected:
  // A worker of a table of zeros that waits for `workers`.
  std::unique_ptr<Client> Worker(int workers) {
    StartServers(2);
    std::unique_ptr<Client> client = MakeClient(0);
    const TableSpec spec = Dense("t", kTableElements, Consistency::kSync, workers);
    EXPECT_TRUE(client->Declare(0, spec, 0, true, std::vector<float>(kTableElements)).ok());
    return client;
  }
};

TEST_P(DrivingTest, CallersOfManyThreadsAreAllAnswered) {
  constexpr int kThreads = 4;
  constexpr int kSteps = 50;
  const std::unique_ptr<Client> client = Worker(1);
  const std::vector<float> ones(kTableElements, 1.0F);
  OnWorkers(kThreads, [&](int) {
    std::vector<float> output(kTableElements);
    for (int step = 0; step < kSteps; ++step) {
      Finish(*client, client->Submit(FrameKind::kPushPull, 0, ones.data(), output.data()));
    }
  });
  std::vector<float> output(kTableElements);
  Finish(*client, client->Submit(FrameKind::kPull, 0, nullptr, output.data()));
  EXPECT_THAT(output, Each(Eq(static_cast<float>(kThreads * kSteps))));
}

// Right after calls that callers have driven themselves, and from a thread that never waits.
TEST_P(DrivingTest, WhatNobodyWaitsForIsDoneAllTheSame) {
  const std::unique_ptr<Client> client = Worker(1);
  const std::vector<float> ones(kTableElements, 1.0F);
  std::vector<float> output(kTableElements);
  for (int step = 0; step < 20; ++step) {
    Finish(*client, client->Submit(FrameKind::kPush, 0, ones.data(), nullptr));
    const auto later = client->Submit(FrameKind::kPushPull, 0, ones.data(), output.data());
    client->Attend();
    const TimePoint deadline = Now() + std::chrono::seconds(60);
    while (!later->is_over() && Now() < deadline) std::this_thread::yield();
    ASSERT_THAT(output, Each(Eq(static_cast<float>(2 * step + 2))));
  }
}

TEST_P(DrivingTest, ACallerThatSleepsHearsOfTheEndOfItsClient) {
  const std::unique_ptr<Client> client = Worker(2);
  const std::vector<float> ones(kTableElements, 1.0F);
  std::vector<float> output(kTableElements);
  const auto waits = client->Submit(FrameKind::kPushPull, 0, ones.data(), output.data());
  std::thread caller([&] {
    Patience patience;
    EXPECT_TRUE(client->Wait(waits, patience, kNever));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  client->Close();
  caller.join();
  EXPECT_THAT(waits->status().message(), HasSubstr("has been closed"));
}

INSTANTIATE_TEST_SUITE_P(Over, DrivingTest, ::testing::Values(true, false),
                         [](const auto& test) { return test.param ? "memory" : "tcp"; });

}  // namespace
}  // namespace mydist::ps
