// Links: frames and payloads both ways, over each kind of connection.
#include "ps/port/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ps/port/link_pair.h"

namespace mydist::ps::testing {
namespace {

class LinkOverEachWay : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Ways, LinkOverEachWay,
                         ::testing::Values(Way::kTcp, Way::kUnix, Way::kWindow),
                         [](const auto& each) { return WayName(each.param); });

TEST_P(LinkOverEachWay, SaysWhoIsThereAndHow) {
  LinkPair pair(GetParam());
  EXPECT_EQ(pair.worker->peer().number, 1);
  EXPECT_EQ(pair.worker->peer().pid, getpid());
  EXPECT_EQ(pair.worker->peer().host, "server-host");
  EXPECT_EQ(pair.server->peer().number, 3);
  EXPECT_EQ(pair.server->peer().pid, 77);
  EXPECT_EQ(pair.server->peer().host, "worker-host");
  EXPECT_EQ(pair.server->peer().session, 9);
  const std::vector<std::string> starts{"over TCP from 127.0.0.1:", "over a Unix socket",
                                        "over shared memory"};
  EXPECT_THAT(pair.server->Text(), ::testing::StartsWith(starts[static_cast<int>(GetParam())]));
  EXPECT_EQ(pair.worker->window().size(), GetParam() == Way::kWindow ? 16 << 20 : 0);
  EXPECT_EQ(pair.server->window().size(), pair.worker->window().size());
}

TEST_P(LinkOverEachWay, BringsFramesAndPayloadsInOrder) {
  LinkPair pair(GetParam());
  const std::vector<size_t> sizes{0, 1, 63, 4032, 4033, 70000, 0, 3 << 20, 5, 0};
  std::vector<std::vector<uint8_t>> payloads;
  std::atomic<int> sent{0};
  for (const bool to_server : {true, false}) {
    Link& from = to_server ? *pair.worker : *pair.server;
    payloads.clear();
    for (size_t i = 0; i < sizes.size(); ++i) {
      payloads.push_back(Bytes(sizes[i], static_cast<uint8_t>(i)));
    }
    sent = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      from.Send({.kind = FrameKind::kPush, .sequence = i, .payload_bytes = sizes[i]}, payloads[i],
                [&] { ++sent; });
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto letter = (to_server ? pair.server_inbox : pair.worker_inbox).Take();
      ASSERT_TRUE(letter.has_value()) << i;
      EXPECT_EQ(letter->frame.sequence, i);
      EXPECT_FALSE(letter->is_borrowed);
      EXPECT_TRUE(letter->payload == payloads[i]) << i;
    }
    while (sent < static_cast<int>(sizes.size())) std::this_thread::yield();
  }
}

TEST_P(LinkOverEachWay, AnswersFromAnEvent) {
  std::atomic<Link*> server{nullptr};
  LinkPair pair(GetParam(), [&](const Frame& frame, const Payload&) {
    server.load()->Send({.kind = FrameKind::kAnswer, .sequence = frame.sequence});
  });
  server = pair.server.get();
  for (uint64_t i = 1; i <= 200; ++i) {
    pair.worker->Send({.kind = FrameKind::kPing, .sequence = i});
    const auto letter = pair.worker_inbox.Take();
    ASSERT_TRUE(letter.has_value());
    EXPECT_EQ(letter->frame.sequence, i);
  }
}

TEST(LinkWithWindow, NamesBytesThatBothSidesSee) {
  LinkPair pair(Way::kWindow);
  const std::vector<uint8_t> gradient = Bytes(5000, 1);
  std::copy(gradient.begin(), gradient.end(), pair.worker->window().begin() + 4096);
  pair.worker->Send({.kind = FrameKind::kPushPull,
                     .is_in_window = true,
                     .sequence = 1,
                     .payload_bytes = 5000,
                     .place = 4096});
  const auto push = pair.server_inbox.Take();
  ASSERT_TRUE(push.has_value());
  EXPECT_TRUE(push->payload == gradient);
  EXPECT_TRUE(push->is_borrowed);

  const std::vector<uint8_t> parameters = Bytes(5000, 99);
  std::copy(parameters.begin(), parameters.end(), pair.server->window().begin() + 4096);
  pair.server->Send({.kind = FrameKind::kAnswer,
                     .is_in_window = true,
                     .sequence = 1,
                     .payload_bytes = 5000,
                     .place = 4096});
  const auto answer = pair.worker_inbox.Take();
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->payload == parameters);
}

}  // namespace
}  // namespace mydist::ps::testing
