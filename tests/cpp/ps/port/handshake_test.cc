// The handshake: workers become links; strangers, other keys and other versions do not.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/own_sockets.h"
#include "ps/port/link_pair.h"
#include "ps/port/raw_peer.h"

namespace mydist::ps::testing {
namespace {

using ::testing::HasSubstr;

// A server whose links do nothing.
class Server {
 public:
  explicit Server(ListenOptions options = ServerOptions()) {
    io = Io::Start(1, "server").value();
    listener = Listener::Open(io, options, [this](std::shared_ptr<Link> link) {
                 ++links;
                 last.Put(std::move(link));
                 return LinkEvents();
               }).value();
  }

  uint16_t port() const { return listener->address().port; }
  const std::string& local() const { return listener->address().local; }

  std::atomic<int> links{0};
  Slot<std::shared_ptr<Link>> last;
  std::shared_ptr<Io> io;
  std::unique_ptr<Listener> listener;
};

Result<std::shared_ptr<Link>> ConnectTo(const Address& address,
                                        const ConnectOptions& options = OptionsFor(Way::kTcp)) {
  static const auto* const kIo = new std::shared_ptr<Io>(Io::Start(1, "worker").value());
  return Connect(*kIo, address, options, {});
}

TEST(Handshake, TurnsAwayStrangersWithALineInTheLog) {
  ::testing::internal::CaptureStderr();
  {
    Server server;
    RawPeer browser = RawPeer::ToTcp(server.port());
    browser.Send("GET / HTTP/1.1\r\n" + std::string(100, 'x'));
    EXPECT_TRUE(browser.IsClosed());
    EXPECT_EQ(server.links, 0);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("server 1 closes a connection from 127.0.0.1:"));
  EXPECT_THAT(log, HasSubstr("the first bytes are not those of mydist's parameter server"));
}

TEST(Handshake, TellsAnotherVersionItsOwn) {
  Server server;
  RawPeer newer = RawPeer::ToTcp(server.port());
  auto hello = EncodeHello({});
  hello[4] = 2;
  newer.Send(hello);
  const auto version = EncodeVersion();
  EXPECT_THAT(newer.Receive(100), ::testing::ElementsAreArray(version));
  EXPECT_EQ(server.links, 0);
}

TEST(Handshake, TurnsAwayAnotherKey) {
  Server server;
  RawPeer other = RawPeer::ToTcp(server.port());
  other.ProveKey(TestKey(8));
  EXPECT_TRUE(other.IsClosed());
  EXPECT_EQ(server.links, 0);
}

TEST(Handshake, TurnsAwayItsOwnProof) {
  Server server;
  RawPeer mirror = RawPeer::ToTcp(server.port());
  mirror.Send(EncodeHello({}));
  const std::vector<uint8_t> reply = mirror.Receive(kReplyBytes);
  ASSERT_EQ(reply.size(), kReplyBytes);
  mirror.Send(std::span(reply).last<kProofBytes>());
  EXPECT_TRUE(mirror.IsClosed());
  EXPECT_EQ(server.links, 0);
}

TEST(Handshake, TurnsAwayAnIntroductionThatIsTooLong) {
  Server server;
  RawPeer worker = RawPeer::ToTcp(server.port());
  worker.ProveKey();
  worker.Send(std::vector<uint8_t>(4, 0xff));
  EXPECT_TRUE(worker.IsClosed());
  EXPECT_EQ(server.links, 0);
}

// More strangers than may be in the handshake, all of them silent, over both sockets.
TEST(Handshake, LetsWorkersInSoonWhateverStrangersWait) {
  ::testing::internal::CaptureStderr();
  Server server;
  std::vector<RawPeer> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(i % 2 == 0 ? RawPeer::ToTcp(server.port())
                                   : RawPeer::ToUnix(server.local()));
  }
  const auto link = ConnectTo(server.listener->address());
  EXPECT_TRUE(link.ok()) << link.status().ToString();
  // The limit of 3 s, not the patience of this test.
  EXPECT_TRUE(strangers.front().IsClosed());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("it did not finish the handshake in time"));
}

TEST(Handshake, RefusesMoreLinksThanItsLimit) {
  ListenOptions options = ServerOptions();
  options.most_links = 1;
  Server server(options);
  const auto first = ConnectTo(server.listener->address());
  ASSERT_TRUE(first.ok());
  const auto second = ConnectTo(server.listener->address());
  EXPECT_EQ(second.status().code(), StatusCode::kPeerLost);
  EXPECT_THAT(second.status().message(), HasSubstr("server 1 has 1 workers already, its limit"));
  // Room again once the first is closed, which the server may learn a moment later.
  (*first)->Close(Status::Ok());
  const TimePoint deadline = Now() + kPatience;
  Result<std::shared_ptr<Link>> third = ConnectTo(server.listener->address());
  while (!third.ok() && Now() < deadline) third = ConnectTo(server.listener->address());
  EXPECT_TRUE(third.ok()) << third.status().ToString();
}

TEST(Handshake, GoesOnWithoutAWindowThatIsNotSealed) {
  Server server;
  RawPeer worker = RawPeer::ToUnix(server.local());
  worker.ProveKey();
  const Descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.number(), 4096), 0);
  SendWithDescriptor(worker.number(), EncodeGreeting({.window_bytes = 4096}), file.number());
  const auto greeting = worker.ReceiveGreeting();
  ASSERT_TRUE(greeting.ok());
  EXPECT_EQ(greeting->window_bytes, 0);
  EXPECT_TRUE(server.last.Await().value()->window().empty());
}

// Descriptors where none is expected, and two where one is.
TEST(Handshake, KeepsNoDescriptorOfAStranger) {
  Server server;
  const size_t before = OpenDescriptors().value().size();
  {
    RawPeer worker = RawPeer::ToUnix(server.local());
    SendWithDescriptor(worker.number(), EncodeHello({}), 0);
    EXPECT_EQ(worker.Receive(kReplyBytes).size(), kReplyBytes);
    alignas(cmsghdr) char room[CMSG_SPACE(2 * sizeof(int))] = {};
    const int numbers[2] = {0, 1};
    Proof proof{};
    iovec part{proof.data(), proof.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof(room);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(numbers));
    std::memcpy(CMSG_DATA(header), numbers, sizeof(numbers));
    sendmsg(worker.number(), &message, 0);
    EXPECT_TRUE(worker.IsClosed());
  }
  server.listener.reset();
  EXPECT_LT(OpenDescriptors().value().size(), before);
}

// --- The worker's side.

TEST(Connect, NamesAnotherKey) {
  Server server;
  ConnectOptions options = OptionsFor(Way::kTcp);
  options.key = TestKey(8);
  for (const bool shares_memory : {false, true}) {
    options.shares_memory = shares_memory;
    const auto link = ConnectTo(server.listener->address(), options);
    EXPECT_EQ(link.status().code(), StatusCode::kInternal);
    EXPECT_THAT(link.status().message(), HasSubstr("cannot connect to server 1 at 127.0.0.1:"));
    EXPECT_THAT(link.status().message(), HasSubstr("it has another key"));
    EXPECT_EQ(link.status().failure().host, "127.0.0.1");
  }
}

TEST(Connect, NamesAnotherServer) {
  Server server;
  Address address = server.listener->address();
  address.server = 2;
  const auto link = ConnectTo(address);
  EXPECT_EQ(link.status().code(), StatusCode::kInternal);
  EXPECT_THAT(link.status().message(), HasSubstr("server 1 listens there, expected server 2"));
}

TEST(Connect, SaysThatNothingListens) {
  Address address;
  {
    Server server;
    address = server.listener->address();
  }
  const auto link = ConnectTo(address, OptionsFor(Way::kWindow));
  EXPECT_EQ(link.status().code(), StatusCode::kPeerLost);
  EXPECT_THAT(link.status().message(), HasSubstr("Connection refused"));
}

TEST(Connect, TakesTcpWhereTheUnixSocketIsOfAnotherHost) {
  Server server;
  Address address = server.listener->address();
  address.local = "mydist-ps-of-another-host";
  const auto link = ConnectTo(address, OptionsFor(Way::kWindow));
  ASSERT_TRUE(link.ok()) << link.status().ToString();
  EXPECT_THAT((*link)->Text(), HasSubstr("over TCP"));
}

TEST(Connect, TakesTheUnixSocketWhereNoPortIs) {
  ListenOptions options = ServerOptions();
  options.bind = "";
  Server server(options);
  EXPECT_EQ(server.port(), 0);
  const auto link = ConnectTo(server.listener->address(), OptionsFor(Way::kWindow));
  ASSERT_TRUE(link.ok()) << link.status().ToString();
  EXPECT_EQ((*link)->Text(), "over shared memory");
}

TEST(Connect, GoesOnWithoutAWindowThatCannotBeHad) {
  Server server;
  ConnectOptions options = OptionsFor(Way::kWindow);
  options.window_bytes = kMaxWindowBytes + 4096;
  const auto link = ConnectTo(server.listener->address(), options);
  ASSERT_TRUE(link.ok()) << link.status().ToString();
  EXPECT_EQ((*link)->Text(), "over a Unix socket");
  EXPECT_TRUE((*link)->window().empty());
}

// What a server that is none answers, and what the worker makes of it.
Status Meets(const std::vector<uint8_t>& answer, TimePoint deadline = Now() + kPatience,
             bool closes = true) {
  uint16_t port = 0;
  const Socket door = ListenOnTcp("127.0.0.1", port).value();
  std::thread stranger([&] {
    pollfd waiting{door.number(), POLLIN, 0};
    poll(&waiting, 1, -1);
    RawPeer peer(Socket(Descriptor(accept4(door.number(), nullptr, nullptr, SOCK_CLOEXEC))));
    if (peer.Receive(kHelloBytes).size() != kHelloBytes) return;
    peer.Send(answer);
    if (!closes) EXPECT_TRUE(peer.IsClosed());
  });
  ConnectOptions options = OptionsFor(Way::kTcp);
  options.deadline = deadline;
  const Status status = ConnectTo({.host = "127.0.0.1", .port = port}, options).status();
  stranger.join();
  return status;
}

std::vector<uint8_t> VersionBytes(uint8_t version) {
  const auto bytes = EncodeVersion();
  std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  copy[4] = version;
  return copy;
}

TEST(Connect, SaysThatNoMydistServerIsThere) {
  const Status status = Meets(Bytes(100, 1));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(),
              HasSubstr("the first bytes are not those of mydist's parameter server"));
}

TEST(Connect, NamesBothVersions) {
  const Status status = Meets(VersionBytes(9));
  EXPECT_EQ(status.code(), StatusCode::kVersionMismatch);
  EXPECT_THAT(status.message(), HasSubstr("speaks version 9 of the handshake, expected 1"));
}

TEST(Connect, SaysThatTheServerEndedTheHandshake) {
  for (const auto& answer : {std::vector<uint8_t>(), VersionBytes(kGreetingVersion)}) {
    const Status status = Meets(answer);
    EXPECT_EQ(status.code(), StatusCode::kPeerLost);
    EXPECT_THAT(status.message(), HasSubstr("it ended the handshake"));
  }
}

TEST(Connect, WaitsNoLongerThanItsDeadline) {
  const Status status = Meets({}, Now() + std::chrono::milliseconds(50), false);
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
}

TEST(Connect, WaitsForRoomInABacklog) {
  const std::string name = "mydist-ps-test-" + std::to_string(getpid());
  const UnixAddress address(name);
  const Descriptor door(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(door.number(), address.get(), address.bytes()), 0);
  ASSERT_EQ(listen(door.number(), 0), 0);
  const RawPeer first = RawPeer::ToUnix(name);  // All that has room.
  std::thread server([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // The worker finds no room.
    RawPeer(Socket(Descriptor(accept(door.number(), nullptr, nullptr))));
    RawPeer second(Socket(Descriptor(accept(door.number(), nullptr, nullptr))));
    EXPECT_EQ(second.Receive(kHelloBytes).size(), kHelloBytes);
  });
  const auto link = ConnectTo({.local = name}, OptionsFor(Way::kWindow));
  EXPECT_THAT(link.status().message(), HasSubstr("it ended the handshake"));
  shutdown(door.number(), SHUT_RDWR);  // Should the thread still wait.
  server.join();
}

}  // namespace
}  // namespace mydist::ps::testing
