// A barrier that names the missing ranks, over the loopback transport; one thread per member.
#include "lanes/monitored_barrier.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "conformance/status_checks.h"
#include "transport/factory.h"

namespace mydist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class MonitoredBarrierTest : public ::testing::Test {
 protected:
  static constexpr int kSize = 4;

  MonitoredBarrierTest() : connections_(ConnectLoopback(kSize)), numbers_(kSize) {
    for (Connection& connection : connections_) {
      posts_.push_back(std::make_unique<LanePosts>(
          [&connection]() -> Result<ControlPlane*> { return connection.control.get(); }));
    }
  }

  Status Call(int rank, Duration limit) {
    const auto index = static_cast<size_t>(rank);
    return MonitoredBarrier(*posts_[index], {rank, kSize, "g", ++numbers_[index], limit});
  }
  // What each of these members gets, called at once.
  std::vector<Status> CallAll(const std::vector<int>& ranks, Duration limit) {
    std::vector<Status> statuses(ranks.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&, i] { statuses[i] = Call(ranks[i], limit); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

 private:
  std::vector<Connection> connections_;
  std::vector<std::unique_ptr<LanePosts>> posts_;
  std::vector<uint64_t> numbers_;
};

TEST_F(MonitoredBarrierTest, AllPassWhenAllHaveCome) {
  for (int turn = 0; turn < 20; ++turn) {
    for (const Status& status : CallAll({0, 1, 2, 3}, seconds(20))) ExpectOk(status);
  }
}

TEST_F(MonitoredBarrierTest, AllWhoCameAreToldEveryMissingRankAndTheNextOneIsInStep) {
  for (const Status& status : CallAll({0, 2}, milliseconds(50))) {
    ExpectError(status, StatusCode::kTimeout,
                {"group 'g', monitored_barrier 1: ranks 1, 3 of the group did not call it within "
                 "0.1 s"});
  }
  // They come late, and get the outcome of their call.
  for (const Status& status : CallAll({1, 3}, seconds(20))) {
    ExpectError(status, StatusCode::kTimeout, {"monitored_barrier 1: ranks 1, 3 of the group"});
  }
  for (const Status& status : CallAll({0, 1, 2, 3}, seconds(20))) ExpectOk(status);
}

TEST_F(MonitoredBarrierTest, ARootThatDoesNotComeIsNamed) {
  for (const Status& status : CallAll({1, 2, 3}, milliseconds(50))) {
    ExpectError(status, StatusCode::kTimeout, {"rank 0 of the group did not call it within 0.1 s"});
  }
}

}  // namespace
}  // namespace mydist
