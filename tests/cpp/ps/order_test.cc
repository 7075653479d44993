// The order of a worker's operations: of threads, of tables, and by priority.
#include <gmock/gmock.h>

#include <numeric>

#include "ps/service.h"

namespace mydist::ps {
namespace {

using ::testing::Each;
using ::testing::Eq;

class OrderTest : public ServiceTest {};

// Threads of one worker push at once: each clock has one gradient, whole, on all servers.
TEST_P(OrderTest, PushesOfTwoThreadsAreInOneOrderOnAllServers) {
  constexpr int64_t kElements = 12'000;
  StartServers(3);
  const std::unique_ptr<Client> client = MakeClient(0);
  const std::unique_ptr<Client> other = MakeClient(1);
  TableSpec spec = Dense("t", kElements, Consistency::kSync, 2);
  spec.rule = {"assign", {}};
  ASSERT_TRUE(client->Declare(1, spec, 0, true, std::vector<float>(kElements)).ok());
  ASSERT_TRUE(other->Declare(1, spec, 1, false, {}).ok());
  const std::vector<float> zeros(kElements);
  const std::vector<std::vector<float>> mine{std::vector<float>(kElements, 1.0F),
                                             std::vector<float>(kElements, 2.0F)};
  for (int round = 0; round < 100; ++round) {
    std::vector<std::shared_ptr<Operation>> pushes(2);
    OnWorkers(2, [&](int thread) {
      const auto index = static_cast<size_t>(thread);
      pushes[index] = client->Submit(FrameKind::kPush, 1, mine[index].data(), nullptr);
    });
    std::vector<std::vector<float>> outputs(2, std::vector<float>(kElements));
    for (std::vector<float>& output : outputs) {
      Finish(*other, other->Submit(FrameKind::kPushPull, 1, zeros.data(), output.data()));
      ASSERT_THAT(output, Each(Eq(output[0]))) << round;
    }
    ASSERT_EQ(outputs[0][0] + outputs[1][0], 1.5F);
    for (const auto& push : pushes) Finish(*client, push);
  }
}

// One worker is far ahead with pushes to one table, and then to another one that the other worker
// wants first. They wait at the worker, and no other table behind them.
TEST_P(OrderTest, AWorkerThatIsFarAheadWaitsAndHoldsUpNoOtherTable) {
  constexpr int64_t kElements = 200'000;
  constexpr int kSteps = 12;
  StartServers(2);
  const auto clients = ClientsWithTables(2, kElements, {Consistency::kSync, Consistency::kSync});
  ASSERT_FALSE(HasFailure());
  const std::vector<float> ones(kElements, 1.0F);
  std::vector<std::vector<float>> outputs(4, std::vector<float>(kElements));
  std::vector<std::shared_ptr<Operation>> ahead;
  for (int step = 0; step < kSteps; ++step) {
    ahead.push_back(clients[0]->Submit(FrameKind::kPush, 0, ones.data(), nullptr));
  }
  const auto last = clients[0]->Submit(FrameKind::kPull, 0, nullptr, outputs[0].data());
  const auto end = clients[0]->SubmitToAll(FrameKind::kFinish, 0);
  const auto elsewhere =
      clients[0]->Submit(FrameKind::kPushPull, 1, ones.data(), outputs[1].data());
  Finish(*clients[1], clients[1]->Submit(FrameKind::kPushPull, 1, ones.data(), outputs[2].data()));
  Finish(*clients[0], elsewhere);
  Finish(*clients[0], ahead[Piece::kMaxLead - 1]);
  EXPECT_FALSE(IsOverWithin(*clients[0], ahead[Piece::kMaxLead], std::chrono::milliseconds(50)));
  EXPECT_FALSE(end->is_over());
  for (int step = 0; step < kSteps; ++step) {
    Finish(*clients[1],
           clients[1]->Submit(FrameKind::kPushPull, 0, ones.data(), outputs[3].data()));
    EXPECT_THAT(outputs[3], Each(Eq(static_cast<float>(step + 1))));
  }
  for (const auto& operation : ahead) Finish(*clients[0], operation);
  Finish(*clients[0], last);
  Finish(*clients[0], end);
  EXPECT_THAT(outputs[0], Each(Eq(static_cast<float>(kSteps))));
}

// A Sync push_pull that waits takes half of the window, so that two others queue up behind it.
class WindowTest : public ServiceTest {};

TEST_P(WindowTest, WhatHasAHigherPriorityIsSentFirst) {
  StartServers(1);
  std::vector<std::string> order;
  Mutex mutex;
  const std::unique_ptr<Client> client = MakeClient(0, [&](const Span& span) {
    MutexLock lock(mutex);
    if (span.name == "PUSH") order.push_back(span.lane);
  });
  const std::unique_ptr<Client> other = MakeClient(1);
  TableSpec first = Dense("first", 125'000, Consistency::kSync, 2);
  first.piece_elements = first.elements;
  const std::vector<float> ones(150'000, 1.0F);
  ASSERT_TRUE(client->Declare(1, first, 0, true, std::vector<float>(125'000)).ok());
  ASSERT_TRUE(other->Declare(1, first, 1, false, {}).ok());
  TableSpec dense = Dense("dense", 150'000, Consistency::kAsync, 1);
  dense.piece_elements = dense.elements;
  for (const uint32_t table : {2U, 3U}) {
    dense.name = "dense" + std::to_string(table);
    ASSERT_TRUE(client->Declare(table, dense, 0, true, ones).ok());
  }
  ASSERT_TRUE(client->Declare(4, Rows("rows", 1500, Consistency::kAsync, 1), 0, true, {}).ok());
  std::vector<int64_t> rows(100);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> output(first.elements);
  const auto waits = client->Submit(FrameKind::kPushPull, 1, ones.data(), output.data());
  std::vector<std::shared_ptr<Operation>> queued;
  queued.push_back(client->Submit(FrameKind::kPush, 2, ones.data(), nullptr));
  queued.push_back(client->Submit(FrameKind::kPush, 3, ones.data(), nullptr, 1));
  queued.push_back(client->SubmitRows(FrameKind::kPush, 4, rows, ones.data(), nullptr, 2));
  EXPECT_FALSE(IsOverWithin(*client, queued[0], std::chrono::milliseconds(50)));
  Finish(*other, other->Submit(FrameKind::kPush, 1, ones.data(), nullptr));
  Finish(*client, waits);
  for (const auto& operation : queued) Finish(*client, operation);
  const MutexLock lock(mutex);
  EXPECT_THAT(order, ::testing::ElementsAre("table rows", "table dense3", "table dense2"));
}

// Whatever the place of the rows that are pulled and of those that are pushed.
TEST_P(OrderTest, TheDelayOfRowsIsTheSameOnAnyNumberOfServers) {
  std::vector<float> results;
  for (const int count : {1, 3}) {
    addresses_.clear();
    servers_.clear();
    StartServers(count);
    const std::unique_ptr<Client> client = MakeClient(0);
    const std::unique_ptr<Client> other = MakeClient(1);
    TableSpec spec = Rows("t", 1, Consistency::kAsync, 2);
    spec.rule = {"ada_delay", {{"smoothness", 1}, {"c", 1}}};
    ASSERT_TRUE(client->Declare(1, spec, 0, true, {}).ok());
    ASSERT_TRUE(other->Declare(1, spec, 1, false, {}).ok());
    const std::vector<float> ones(1, 1.0F);
    std::vector<int64_t> rows(1);
    float value = 0;
    for (int64_t step = 0; step < 20; ++step) {
      rows[0] = step * 256;  // Another block, and so perhaps another server.
      Finish(*client, client->SubmitRows(FrameKind::kPull, 1, rows, nullptr, &value));
      rows[0] += 1;
      if (step % 3 == 0) {
        Finish(*other, other->SubmitRows(FrameKind::kPush, 1, rows, ones.data(), nullptr));
      }
      rows[0] = (step * 7 % 20) * 256;
      Finish(*client, client->SubmitRows(FrameKind::kPush, 1, rows, ones.data(), nullptr));
      Finish(*other, other->SubmitRows(FrameKind::kPull, 1, rows, nullptr, &value));
      results.push_back(value);
    }
    EXPECT_EQ(client->StatsOf(1).most_staleness, 1);
  }
  const std::vector<float> alone(results.begin(), results.begin() + 20);
  EXPECT_THAT(std::vector<float>(results.begin() + 20, results.end()),
              ::testing::ElementsAreArray(alone));
}

INSTANTIATE_TEST_SUITE_P(Over, WindowTest, ::testing::Values(true),
                         [](const auto&) { return "memory"; });
INSTANTIATE_TEST_SUITE_P(Over, OrderTest, ::testing::Values(true, false),
                         [](const auto& test) { return test.param ? "memory" : "tcp"; });

}  // namespace
}  // namespace mydist::ps
