// Servers and clients in one process, over Unix sockets with a window and over TCP.
#include "ps/service.h"

#include "ps/port/raw_peer.h"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <numeric>
#include <random>

namespace mydist::ps {
namespace {

using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Tables that are larger than the window, in an order of its own on each worker.
TEST_P(ServiceTest, NoPushIsLostAndNoneBlocksAnother) {
  constexpr int kWorkers = 3;
  constexpr int64_t kElements = 600'000;
  StartServers(2);
  const auto clients =
      ClientsWithTables(kWorkers, kElements, {Consistency::kSync, Consistency::kAsync});
  ASSERT_FALSE(HasFailure());
  OnWorkers(kWorkers, [&](int rank) {
    Client& client = *clients[static_cast<size_t>(rank)];
    const std::vector<float> ones(kElements, 1.0F);
    for (int step = 0; step < 3; ++step) {
      std::vector<std::vector<float>> outputs(2, std::vector<float>(kElements));
      std::vector<std::shared_ptr<Operation>> operations;
      for (int i = 0; i < 2; ++i) {
        const auto table = static_cast<uint32_t>((i + rank) % 2);
        operations.push_back(
            client.Submit(FrameKind::kPushPull, table, ones.data(), outputs[table].data()));
      }
      for (const auto& operation : operations) Finish(client, operation);
      EXPECT_THAT(outputs[0], Each(Eq(static_cast<float>(step + 1))));
    }
  });
  std::vector<float> result(kElements);
  Finish(*clients[0], clients[0]->Submit(FrameKind::kPull, 1, nullptr, result.data()));
  EXPECT_THAT(result, Each(Eq(9.0F)));
}

// Two tables larger than what may be on its way, pushed in opposite orders before either is read.
TEST_P(ServiceTest, WaitingRequestsHoldUpNoOthers) {
  constexpr int64_t kElements = 600'000;
  StartServers(1);
  const auto clients = ClientsWithTables(2, kElements, {Consistency::kSync, Consistency::kSync});
  ASSERT_FALSE(HasFailure());
  OnWorkers(2, [&](int rank) {
    Client& client = *clients[static_cast<size_t>(rank)];
    const std::vector<float> ones(kElements, 1.0F);
    for (const FrameKind kind : {FrameKind::kPush, FrameKind::kPushPull}) {
      std::vector<std::vector<float>> outputs(2, std::vector<float>(kElements));
      std::vector<std::shared_ptr<Operation>> operations;
      for (int i = 0; i < 2; ++i) {
        const auto table = static_cast<uint32_t>((i + rank) % 2);
        float* const output = outputs[table].data();
        operations.push_back(client.Submit(kind, table, ones.data(), output));
        if (kind == FrameKind::kPushPull) continue;
        operations.push_back(client.Submit(FrameKind::kPull, table, nullptr, output));
      }
      for (const auto& operation : operations) Finish(client, operation);
      EXPECT_THAT(outputs[0], Each(Eq(kind == FrameKind::kPush ? 1.0F : 2.0F)));
    }
  });
}

TEST_P(ServiceTest, RowsAreThoseOfATableInOnePlace) {
  constexpr int kWorkers = 2;
  constexpr int64_t kColumns = 5;
  StartServers(3);
  std::vector<std::unique_ptr<Client>> clients;
  for (int rank = 0; rank < kWorkers; ++rank) clients.push_back(MakeClient(rank));
  for (const Consistency consistency : {Consistency::kAsync, Consistency::kSync}) {
    const auto number = static_cast<uint32_t>(consistency);
    for (int rank = 0; rank < kWorkers; ++rank) {
      const TableSpec spec = Rows("rows" + std::to_string(number), kColumns, consistency, kWorkers);
      const Status status =
          clients[static_cast<size_t>(rank)]->Declare(number, spec, rank, rank == 0, {});
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    std::vector<std::atomic<int>> expected(10'000);
    OnWorkers(kWorkers, [&](int rank) {
      Client& client = *clients[static_cast<size_t>(rank)];
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int step = 0; step < 30; ++step) {
        std::vector<int64_t> rows(random() % 400);
        for (int64_t& row : rows) row = static_cast<int64_t>(random() % 10'000);
        for (const int64_t row : rows) ++expected[static_cast<size_t>(row)];
        const std::vector<float> gradients(rows.size() * kColumns, 2.0F);
        std::vector<float> output(gradients.size());
        const bool pulls = random() % 2 == 0;
        Finish(client, client.SubmitRows(pulls ? FrameKind::kPushPull : FrameKind::kPush, number,
                                         rows, gradients.data(), output.data()));
      }
      Finish(client, client.SubmitToAll(FrameKind::kFinish, number));
    });
    std::vector<int64_t> all(10'000);
    std::iota(all.begin(), all.end(), 0);
    std::vector<float> values(all.size() * kColumns);
    Finish(*clients[1],
           clients[1]->SubmitRows(FrameKind::kPull, number, all, nullptr, values.data()));
    const float each = consistency == Consistency::kSync ? 1.0F : 2.0F;  // Sync: the mean of two.
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], each * static_cast<float>(expected[i / kColumns].load())) << i;
    }
  }
}

// As when one of the servers is gone: its memory may be in use for something else by then. The
// clock of the piece moves as on the other servers.
TEST_P(ServiceTest, APushThatHasFailedIsSentWithoutItsGradient) {
  constexpr int64_t kElements = 1000;
  StartServers(1);
  const std::unique_ptr<Client> client = MakeClient(0);
  const std::unique_ptr<Client> other = MakeClient(1);
  const TableSpec spec = Dense("t", kElements, Consistency::kSync, 2);
  ASSERT_TRUE(client->Declare(1, spec, 0, true, std::vector<float>(kElements)).ok());
  ASSERT_TRUE(other->Declare(1, spec, 1, false, {}).ok());
  const std::vector<float> sevens(kElements, 7.0F);
  std::vector<float> output(kElements);
  Finish(*client, client->Submit(FrameKind::kPush, 1, sevens.data(), nullptr));
  Finish(*other, other->Submit(FrameKind::kPush, 1, sevens.data(), nullptr));
  Part part;
  part.frame = {.kind = FrameKind::kPush, .table = 1};
  part.payload = {reinterpret_cast<const uint8_t*>(sevens.data()), kElements * sizeof(float)};
  part.operation = std::make_shared<Operation>("push", 1);
  part.operation->Fail(Status::Aborted("as if another server had died"));
  std::vector<Part> parts;
  parts.push_back(std::move(part));
  client->lanes()[0]->Submit(std::move(parts));
  const std::vector<float> ones(kElements, 1.0F);
  Finish(*other, other->Submit(FrameKind::kPushPull, 1, ones.data(), output.data()));
  EXPECT_THAT(output, Each(Eq(8.0F)));
}

// Cuts all connections of this process again and again; not before a worker has made a step since
// the last time: on a busy machine none would be there long enough.
class Cutter {
 public:
  explicit Cutter(const std::atomic<int>& steps) : steps_(steps) {}
  ~Cutter() {
    is_over_ = true;
    thread_.join();
  }

 private:
  void Run() const {
    while (!is_over_) {
      for (int socket = 3; socket < 1024; ++socket) {
        sockaddr_storage peer{};
        socklen_t bytes = sizeof(peer);
        if (getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0) {
          shutdown(socket, SHUT_RDWR);
        }
      }
      const int seen = steps_;
      do {
        std::this_thread::sleep_for(std::chrono::milliseconds(15));
      } while (!is_over_ && steps_ == seen);
    }
  }

  const std::atomic<int>& steps_;
  std::atomic<bool> is_over_{false};
  std::thread thread_{[this] { Run(); }};
};

TEST_P(ServiceTest, ABrokenConnectionLosesNoPushAndRepeatsNone) {
  constexpr int kWorkers = 2;
  constexpr int64_t kElements = 20'000;
  constexpr int kSteps = 100;
  StartServers(2);
  std::vector<std::unique_ptr<Client>> clients;
  const std::vector<float> ones(kElements, 1.0F);
  const std::vector<Consistency> kinds = {Consistency::kSync, Consistency::kAsync};
  for (int rank = 0; rank < kWorkers; ++rank) {
    clients.push_back(MakeClient(rank));
    for (uint32_t table = 0; table < kinds.size(); ++table) {
      const TableSpec spec = Dense("t" + std::to_string(table), kElements, kinds[table], kWorkers);
      ASSERT_TRUE(clients.back()
                      ->Declare(table, spec, rank, rank == 0, std::vector<float>(kElements))
                      .ok());
    }
  }
  {
    std::atomic<int> steps{0};
    const Cutter cutter(steps);
    OnWorkers(kWorkers, [&](int rank) {
      Client& client = *clients[static_cast<size_t>(rank)];
      std::vector<float> output(kElements);
      for (int step = 0; step < kSteps; ++step) {
        const auto alone = client.Submit(FrameKind::kPush, 1, ones.data(), nullptr);
        Finish(client, client.Submit(FrameKind::kPushPull, 0, ones.data(), output.data()));
        ASSERT_THAT(output, Each(Eq(static_cast<float>(step + 1))));
        Finish(client, alone);
        ++steps;
      }
    });
  }
  std::vector<float> result(kElements);
  Finish(*clients[0], clients[0]->Submit(FrameKind::kPull, 1, nullptr, result.data()));
  EXPECT_THAT(result, Each(Eq(static_cast<float>(kWorkers * kSteps))));
  EXPECT_GT(clients[0]->stats().repeated, 0);
}

TEST_P(ServiceTest, AServerThatIsGoneEndsWhatWaitsForIt) {
  StartServers(2);
  const std::unique_ptr<Client> client = MakeClient(0);
  const TableSpec spec = Dense("t", 5000, Consistency::kSync, 2);
  const std::vector<float> zeros(5000);
  ASSERT_TRUE(client->Declare(1, spec, 0, true, zeros).ok());
  std::vector<float> output(5000);
  const auto waits = client->Submit(FrameKind::kPushPull, 1, zeros.data(), output.data());
  const TimePoint begin = Now();
  servers_[1].reset();
  EXPECT_TRUE(IsOverWithin(*client, waits, std::chrono::seconds(10)));
  EXPECT_EQ(waits->status().code(), StatusCode::kPeerLost);
  EXPECT_THAT(waits->status().message(), HasSubstr("server 1 (host here, pid "));
  EXPECT_THAT(
      waits->status().message(),
      MatchesRegex(".* has died; it held [1-5] of 5 pieces of table t\\. See its output.*"));
  EXPECT_LT(Now() - begin, std::chrono::seconds(3));
  const auto later = client->Submit(FrameKind::kPull, 1, nullptr, output.data());
  EXPECT_TRUE(IsOverWithin(*client, later, std::chrono::seconds(10)));
  EXPECT_EQ(later->status().code(), StatusCode::kPeerLost);
}

TEST_P(ServiceTest, AWorkerThatIsGoneEndsASyncTable) {
  StartServers(1);
  const std::unique_ptr<Client> stays = MakeClient(0);
  std::unique_ptr<Client> leaves = MakeClient(1);
  const std::vector<float> zeros(5000);
  ASSERT_TRUE(stays->Declare(1, Dense("t", 5000, Consistency::kSync, 2), 0, true, zeros).ok());
  std::vector<float> output(5000);
  const auto waits = stays->Submit(FrameKind::kPushPull, 1, zeros.data(), output.data());
  EXPECT_FALSE(IsOverWithin(*stays, waits, std::chrono::milliseconds(50)));
  for (const std::shared_ptr<Lane>& lane : leaves->lanes()) {
    lane->Fail(Status::Aborted("as if it had died"));
  }
  EXPECT_TRUE(IsOverWithin(*stays, waits, std::chrono::seconds(10)));
  EXPECT_EQ(waits->status().code(), StatusCode::kPeerLost);
  EXPECT_THAT(waits->status().failure().ranks, ::testing::ElementsAre(1));
}

TEST_P(ServiceTest, APushOfWhichAPartHasComeIsDroppedWithItsWorker) {
  StartServers(1);
  const std::unique_ptr<Client> client = MakeClient(0);
  TableSpec spec = Dense("t", 1000, Consistency::kSsp, 1);
  spec.ranks.push_back(3);
  ASSERT_TRUE(client->Declare(1, spec, 0, true, std::vector<float>(1000)).ok());
  {
    auto other = testing::RawPeer::ToTcp(addresses_[0].port);
    other.BecomeWorker(kKey);
    other.Send(EncodeFrame(
        {.kind = FrameKind::kPush, .table = 1, .worker = 1, .sequence = 1, .payload_bytes = 4000}));
    other.Send(std::vector<uint8_t>(3996, 0x3f));
  }
  const std::vector<float> ones(1000, 1.0F);
  std::vector<float> output(1000);
  // It waits until the worker is taken for lost.
  Finish(*client, client->Submit(FrameKind::kPushPull, 1, ones.data(), output.data()));
  EXPECT_THAT(output, Each(Eq(1.0F)));
}

TEST_P(ServiceTest, AWorkerThatHasFailedEndsASyncTableAtOnce) {
  StartServers(1);
  const std::unique_ptr<Client> stays = MakeClient(0);
  const std::unique_ptr<Client> fails = MakeClient(1);
  const std::vector<float> zeros(5000);
  ASSERT_TRUE(stays->Declare(1, Dense("t", 5000, Consistency::kSync, 2), 0, true, zeros).ok());
  std::vector<float> output(5000);
  const auto waits = stays->Submit(FrameKind::kPushPull, 1, zeros.data(), output.data());
  fails->Close(true);
  EXPECT_TRUE(IsOverWithin(*stays, waits, std::chrono::seconds(10)));
  EXPECT_EQ(waits->status().code(), StatusCode::kAborted);
  EXPECT_THAT(waits->status().message(), HasSubstr("rank 1 (host here, pid "));
}

// Its tables go once all workers have left: their numbers may come again, after another init().
TEST_P(ServiceTest, TablesGoWithTheirWorkers) {
  StartServers(1);
  const std::vector<float> ones(5000, 1.0F);
  for (const Consistency consistency : {Consistency::kSync, Consistency::kAsync}) {
    const std::unique_ptr<Client> client = MakeClient(0);
    Status declared;
    do {  // A goodbye needs no answer.
      declared = client->Declare(1, Dense("t", 5000, consistency, 1), 0, true, ones);
    } while (declared.code() == StatusCode::kMismatch);
    ASSERT_TRUE(declared.ok()) << declared.ToString();
    std::vector<float> output(5000);
    Finish(*client, client->Submit(FrameKind::kPushPull, 1, ones.data(), output.data()));
    EXPECT_THAT(output, Each(Eq(2.0F)));
  }
}

// Its clock is infinite from then on.
TEST_P(ServiceTest, AWorkerThatSaysGoodbyeHoldsNoneUp) {
  StartServers(1);
  const std::unique_ptr<Client> stays = MakeClient(0);
  std::unique_ptr<Client> leaves = MakeClient(1);
  const std::vector<float> ones(5000, 1.0F);
  ASSERT_TRUE(stays->Declare(1, Dense("t", 5000, Consistency::kSync, 2), 0, true, ones).ok());
  std::vector<float> output(5000);
  const auto waits = stays->Submit(FrameKind::kPushPull, 1, ones.data(), output.data());
  leaves.reset();
  Finish(*stays, waits);
  EXPECT_THAT(output, Each(Eq(2.0F)));
}

INSTANTIATE_TEST_SUITE_P(Over, ServiceTest, ::testing::Values(true, false),
                         [](const auto& test) { return test.param ? "memory" : "tcp"; });

}  // namespace
}  // namespace mydist::ps
