// Jobs that the loopback backend has connected, and whose ranks share memory inside each host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "conformance/control_plane_suite.h"
#include "conformance/deep.h"
#include "fakes/forwarding.h"
#include "transport/local/local_jobs.h"

namespace mydist::local {
namespace {

// Passes all on, but messages to ranks of the same host: they must not come this way.
class BetweenHosts final : public testing::ForwardingPlane {
 public:
  BetweenHosts(std::unique_ptr<ControlPlane> plane, std::vector<int> forbidden,
               std::atomic<int>* close_count)
      : ForwardingPlane(std::move(plane)),
        forbidden_(std::move(forbidden)),
        close_count_(close_count) {}

  Status Send(int peer, Bytes payload) override {
    EXPECT_THAT(forbidden_, ::testing::Not(::testing::Contains(peer)));
    return ForwardingPlane::Send(peer, std::move(payload));
  }
  Status Close(TimePoint deadline) override {
    close_count_->fetch_add(1);
    return ForwardingPlane::Close(deadline);
  }

 private:
  const std::vector<int> forbidden_;
  std::atomic<int>* const close_count_;
};

// `hosts`: a letter for each rank. Returns how many of the backend's planes have been closed.
int OnHosts(const std::string& hosts, const std::function<void(Connection&)>& body) {
  const shm::ShmDirectory directory;
  std::atomic<int> close_count = 0;
  std::vector<Connection> connections = ConnectLoopback(static_cast<int>(hosts.size()));
  RunAsRanks(static_cast<int>(hosts.size()), [&](int rank) {
    Connection& connection = connections[static_cast<size_t>(rank)];
    shm::ArenaOptions options = shm::OptionsOf(0, 1, directory);
    options.ranks.clear();
    for (int peer = 0; peer < connection.size; ++peer) {
      if (hosts[static_cast<size_t>(peer)] != hosts[static_cast<size_t>(rank)]) continue;
      if (peer == rank) options.index = static_cast<int>(options.ranks.size());
      options.ranks.push_back(peer);
    }
    options.control_bytes = LocalControlBytes(static_cast<int>(options.ranks.size()));
    const std::shared_ptr<shm::ShmPort> port = shm::OpenPort(options, connection.exchange);
    ASSERT_NE(port, nullptr);
    connection.control =
        std::make_unique<BetweenHosts>(std::move(connection.control), options.ranks, &close_count);
    ExpectOk(ShareWithinHost(connection, port));
    body(connection);
  });
  return close_count.load();
}

class CompositeControlPlane : public ::testing::TestWithParam<const char*> {};
// Two hosts, interleaved, and one are what a sanitizer sees.
std::vector<const char*> Layouts() {
  const std::vector<const char*> all = {"aabb", "abab", "abbb", "aaaa"};
  return InDeep(all, all, {"abab", "aaaa"});
}

INSTANTIATE_TEST_SUITE_P(Hosts, CompositeControlPlane, ::testing::ValuesIn(Layouts()),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(CompositeControlPlane, PassesTheConformanceSuite) {
  const int close_count = OnHosts(GetParam(), [](Connection& connection) {
    conformance::RunControlPlaneConformance(connection);
    conformance::ClosesInOrder(connection);
  });
  EXPECT_EQ(close_count, 4);
}

TEST(CompositeControlPlaneNudge, EndsTheWaitOfARankOfThisHost) {
  std::atomic<int> word = 0;
  OnHosts("aab", [&](Connection& connection) {
    constexpr int kRounds = 500;
    for (int round = 1; round <= kRounds && connection.rank < 2; ++round) {
      const int turn = 2 * round - connection.rank;  // Rank 1 begins; rank 0 makes it even.
      while (word.load(std::memory_order_relaxed) < turn - 1) {
        const TimePoint limit = Soon();
        connection.control->Await(limit);
        ASSERT_LT(Now(), limit) << "not woken in round " << round;
      }
      word.store(turn, std::memory_order_relaxed);
      connection.control->Nudge(1 - connection.rank);
    }
    conformance::ClosesInOrder(connection);
  });
}

TEST(CompositeControlPlaneLoss, OfAnotherHostAndOfThisOneIsNamed) {
  OnHosts("aab", [](Connection& connection) {
    if (connection.rank == 0) {
      for (const int lost : {2, 1}) {
        const Status loss = AwaitLoss(*connection.control);
        EXPECT_EQ(loss.code(), StatusCode::kPeerLost);
        EXPECT_THAT(loss.message(), ::testing::StartsWith("rank " + std::to_string(lost) + " "));
        if (lost == 2) ExpectOk(connection.control->Send(1, {1}));
      }
      return;
    }
    if (connection.rank == 1) {
      // Its own loss comes second.
      const TimePoint deadline = Soon();
      for (bool has_message = false; !has_message && Now() < deadline;) {
        const auto got = conformance::ReceiveBy(*connection.control, deadline);
        has_message = got.ok() && got->has_value();
      }
    }
    connection.control.reset();
  });
}

}  // namespace
}  // namespace mydist::local
