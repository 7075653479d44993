// Links: frames and payloads both ways, over each kind of connection.
#include "ps/port/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ps/port/link_pair.h"
#include "ps/port/raw_peer.h"

namespace mydist::ps::testing {
namespace {

class LinkOverEachWay : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Ways, LinkOverEachWay,
                         ::testing::Values(Way::kTcp, Way::kUnix, Way::kWindow),
                         [](const auto& each) { return WayName(each.param); });

TEST_P(LinkOverEachWay, KnowsItsPeerAndItsKind) {
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

// --- Threads.

TEST_P(LinkOverEachWay, TakesFramesFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr uint64_t kFrames = 200;
  LinkPair pair(GetParam());
  const std::vector<uint8_t> payload = Bytes(3000, 1);
  std::atomic<uint64_t> sent{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t j = 0; j < kFrames; ++j) {
        pair.worker->Send(
            {.kind = FrameKind::kPush, .worker = i, .sequence = j, .payload_bytes = 3000}, payload,
            [&] { ++sent; });
      }
    });
  }
  std::vector<uint64_t> next(kThreads);
  for (uint64_t i = 0; i < kThreads * kFrames; ++i) {
    const auto letter = pair.server_inbox.Take();
    ASSERT_TRUE(letter.has_value());
    EXPECT_EQ(letter->frame.sequence, next.at(letter->frame.worker)++);
    EXPECT_TRUE(letter->payload == payload);
  }
  for (std::thread& thread : threads) thread.join();
  while (sent < kThreads * kFrames) std::this_thread::yield();  // The payload has to last so long.
}

TEST(Links, AreServedByOneThreadEachAndTogetherByAll) {
  constexpr int kLinks = 3;
  std::atomic<int> met{0};
  std::atomic<int> overlaps{0};
  Inbox inbox;
  const std::shared_ptr<Io> io = Io::Start(kLinks, "server").value();
  const std::shared_ptr<Io> worker_io = Io::Start(1, "worker").value();
  const auto listener = Listener::Open(io, ServerOptions(), [&](std::shared_ptr<Link>) {
                          auto busy = std::make_shared<std::atomic<bool>>(false);
                          return inbox.Events([&, busy](const Frame&, const Payload&) {
                            if (busy->exchange(true)) ++overlaps;
                            // Each waits here for the others, as long as they have frames as well.
                            ++met;
                            const TimePoint deadline = Now() + kPatience;
                            while (met.load() < kLinks && Now() < deadline) {
                              std::this_thread::yield();
                            }
                            *busy = false;
                          });
                        }).value();
  std::vector<std::shared_ptr<Link>> links;
  for (int i = 0; i < kLinks; ++i) {
    links.push_back(Connect(worker_io, listener->address(), OptionsFor(Way::kUnix), {}).value());
  }
  for (int frame = 0; frame < 50; ++frame) {
    for (const auto& link : links) link->Send({.kind = FrameKind::kPing});
  }
  for (int i = 0; i < 50 * kLinks; ++i) ASSERT_TRUE(inbox.Take().has_value());
  EXPECT_EQ(overlaps, 0);
  EXPECT_GE(met, kLinks);
}

// --- The end of a link.

TEST_P(LinkOverEachWay, ToldToCloseTellsBothSidesOnce) {
  LinkPair pair(GetParam());
  const Status why = Status::Aborted("enough");
  pair.worker->Close(why);
  pair.worker->Close(Status::Internal("again"));
  EXPECT_EQ(pair.worker_inbox.End().value().message(), "enough");
  EXPECT_TRUE(pair.server_inbox.End().value().ok());
  std::atomic<int> sent{0};
  pair.worker->Send({.kind = FrameKind::kPing}, {}, [&] { ++sent; });
  EXPECT_EQ(sent, 1);
  pair.server->Close(why);
  EXPECT_EQ(pair.worker_inbox.mistakes() + pair.server_inbox.mistakes(), 0);
}

TEST_P(LinkOverEachWay, MayBeClosedFromAnEvent) {
  std::atomic<Link*> server{nullptr};
  LinkPair pair(GetParam(), [&](const Frame&, const Payload&) {
    server.load()->Close(Status::Aborted("seen"));
  });
  server = pair.server.get();
  for (int i = 0; i < 3; ++i) pair.worker->Send({.kind = FrameKind::kPing});
  EXPECT_EQ(pair.server_inbox.End().value().message(), "seen");
  EXPECT_TRUE(pair.worker_inbox.End().has_value());
  EXPECT_TRUE(pair.server_inbox.Take().has_value());
  EXPECT_FALSE(pair.server_inbox.Take().has_value());  // None after the first.
}

// The other side reads nothing, so most of it is still on its way when the link closes.
TEST_P(LinkOverEachWay, LetsGoOfEachPayloadOnce) {
  constexpr int kFrames = 64;
  Slot<bool> may_read;
  LinkPair pair(GetParam(), [&](const Frame&, const Payload&) { may_read.Await(); });
  const std::vector<uint8_t> payload = Bytes(1 << 20, 1);
  std::vector<std::atomic<int>> sent(kFrames);
  for (int i = 0; i < kFrames; ++i) {
    pair.worker->Send({.kind = FrameKind::kPush, .payload_bytes = payload.size()}, payload,
                      [&sent, i] { ++sent[i]; });
  }
  EXPECT_EQ(sent.back(), 0);
  pair.worker->Close(Status::Ok());
  ASSERT_TRUE(pair.worker_inbox.End().has_value());
  for (const auto& each : sent) EXPECT_EQ(each, 1);
  may_read.Put(true);
  const std::optional<Status> end = pair.server_inbox.End();
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->code(), StatusCode::kPeerLost);  // In the middle of a frame.
}

TEST_P(LinkOverEachWay, EndsWithItsIo) {
  LinkPair pair(GetParam());
  pair.worker_io.reset();
  EXPECT_EQ(pair.worker_inbox.End().value().code(), StatusCode::kAborted);
  EXPECT_TRUE(pair.server_inbox.End().value().ok());
  std::atomic<int> sent{0};
  pair.worker->Send({.kind = FrameKind::kPing}, {}, [&] { ++sent; });
  EXPECT_EQ(sent, 1);
  pair.worker->Close(Status::Ok());
  EXPECT_EQ(pair.worker->window().size(), GetParam() == Way::kWindow ? 16 << 20 : 0);
}

TEST_P(LinkOverEachWay, EndsWhileBothSidesSend) {
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> given{0};
    std::atomic<int> sent{0};
    const std::vector<uint8_t> payload = Bytes(100000, 1);
    LinkPair pair(GetParam());
    std::vector<std::thread> threads;
    std::atomic<bool> stops{false};
    for (Link* const link : {pair.worker.get(), pair.server.get()}) {
      threads.emplace_back([&, link] {
        while (!stops) {
          if (given - sent > 100) {
            std::this_thread::yield();
            continue;
          }
          ++given;
          link->Send({.kind = FrameKind::kPush, .payload_bytes = payload.size()}, payload,
                     [&] { ++sent; });
        }
      });
    }
    ASSERT_TRUE(pair.server_inbox.Take().has_value());
    (round % 2 == 0 ? pair.worker : pair.server)->Close(Status::Ok());
    EXPECT_TRUE(pair.worker_inbox.End().has_value());
    EXPECT_TRUE(pair.server_inbox.End().has_value());
    stops = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(sent, given);
    EXPECT_EQ(pair.worker_inbox.mistakes() + pair.server_inbox.mistakes(), 0);
  }
}

// Without a call that a forked child may not make. Not through fstat, where a sanitizer looks on: a
// thread of the library may close its file at any time, and then this test is the one that races.
int SocketCount() {
  int count = 0;
  for (int number = 0; number < 1024; ++number) {
    struct stat info {};
    const bool is_open = syscall(SYS_fstat, number, &info) == 0;
    if (is_open && S_ISSOCK(info.st_mode)) ++count;
  }
  return count;
}

TEST_P(LinkOverEachWay, IsNotKeptByAForkedChild) {
  const int before = SocketCount();
  LinkPair pair(GetParam());
  EXPECT_EQ(SocketCount() - before, 4);  // Two that listen, and both ends.
  const pid_t child = fork();
  if (child == 0) _exit(SocketCount() - before);
  ASSERT_GT(child, 0);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// --- What a worker may send.

class RawWorker {
 public:
  RawWorker() : peer(RawPeer::ToUnix(Listen())) { peer.BecomeWorker(); }
  ~RawWorker() {
    listener.reset();
    io.reset();
  }

  Inbox inbox;
  std::shared_ptr<Io> io = Io::Start(1, "server").value();
  std::unique_ptr<Listener> listener;
  RawPeer peer;

 private:
  const std::string& Listen() {
    listener = Listener::Open(io, ServerOptions(), [this](const std::shared_ptr<Link>&) {
                 return inbox.Events();
               }).value();
    return listener->address().local;
  }
};

TEST(LinkFromWorker, ThatEndsInTheMiddleOfAFrameIsLost) {
  RawWorker worker;
  worker.peer.Send(EncodeFrame({.kind = FrameKind::kPush, .payload_bytes = 10}));
  worker.peer.Send(std::vector<uint8_t>(9));
  worker.peer.Close();
  const Status end = worker.inbox.End().value();
  EXPECT_EQ(end.code(), StatusCode::kPeerLost);
  EXPECT_EQ(end.message(), "the connection over a Unix socket: it ended in the middle of a frame");
  EXPECT_EQ(end.failure().host, "worker-host");
  EXPECT_EQ(end.failure().pid, 77);
}

TEST(LinkFromWorker, ThatSendsNoFrameIsClosed) {
  RawWorker worker;
  worker.peer.Send(EncodeFrame({.kind = FrameKind::kPing, .sequence = 1}));
  worker.peer.Send(std::vector<uint8_t>(kFrameBytes, 1));
  EXPECT_EQ(worker.inbox.Take().value().frame.sequence, 1);
  EXPECT_EQ(worker.inbox.End().value().code(), StatusCode::kInternal);
  EXPECT_TRUE(worker.peer.IsClosed());
}

TEST(LinkFromWorker, ThatEndsBetweenFramesIsNoMistake) {
  RawWorker worker;
  worker.peer.Send(EncodeFrame({.kind = FrameKind::kGoodbye}));
  worker.peer.Close();
  EXPECT_EQ(worker.inbox.Take().value().frame.kind, FrameKind::kGoodbye);
  EXPECT_TRUE(worker.inbox.End().value().ok());
}

// --- The Io.

TEST(Io, CallsWhatIsPostedAfterItsDelay) {
  Slot<TimePoint> at_once;
  Slot<TimePoint> later;
  const std::shared_ptr<Io> io = Io::Start(1, "io").value();
  const TimePoint begin = Now();
  io->Post([&] { later.Put(Now()); }, std::chrono::milliseconds(20));
  io->Post([&] { at_once.Put(Now()); });
  EXPECT_GE(later.Await().value() - begin, std::chrono::milliseconds(20));
  EXPECT_TRUE(at_once.Await().has_value());
}

TEST(Io, EndsWhateverIsStillDelayed) {
  std::shared_ptr<Io> io = Io::Start(2, "io").value();
  const auto token = std::make_shared<int>(0);
  io->Post([token] { ADD_FAILURE() << "an hour has passed"; }, std::chrono::hours(1));
  io.reset();
  EXPECT_EQ(token.use_count(), 1);
}

TEST(Listener, EndsWithoutItsLinks) {
  LinkPair pair(Way::kUnix);
  pair.listener.reset();
  pair.worker->Send({.kind = FrameKind::kPing});
  EXPECT_TRUE(pair.server_inbox.Take().has_value());
}

TEST(Listener, NamesAnAddressThatIsNotOfThisHost) {
  ListenOptions options = ServerOptions();
  options.bind = "192.0.2.1";  // For documentation only.
  const auto listener = Listener::Open(Io::Start(1, "io").value(), options, nullptr);
  EXPECT_EQ(listener.status().code(), StatusCode::kInternal);
  EXPECT_THAT(listener.status().message(), ::testing::HasSubstr("cannot listen on 192.0.2.1: "));
}

}  // namespace
}  // namespace mydist::ps::testing
