#include "job/heartbeat.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace mydist {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLimit = seconds(1);
std::string NameOf(int rank) { return "rank " + std::to_string(rank); }

std::unique_ptr<Heartbeat> Opened(int rank, int peer, const std::string& address = "127.0.0.1") {
  auto heartbeat = Heartbeat::Open(rank, {{peer, true}}, address, kLimit);
  EXPECT_TRUE(heartbeat.ok()) << heartbeat.status().ToString();
  return std::move(heartbeat).value();
}

// What one of them has found.
class Findings {
 public:
  Heartbeat::OnFinding Sink() {
    return [this](const PeerFinding& finding) {
      MutexLock lock(mutex_);
      findings_.push_back(finding);
      changed_.NotifyAll();
    };
  }
  std::vector<PeerFinding> Await(Duration limit) {
    const TimePoint deadline = Now() + limit;
    MutexLock lock(mutex_);
    while (findings_.empty() && changed_.WaitUntil(mutex_, deadline)) {
    }
    return findings_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<PeerFinding> findings_ MYDIST_GUARDED_BY(mutex_);
};

struct Pair {
  explicit Pair(const std::string& address = "127.0.0.1")
      : first(Opened(0, 1, address)), second(Opened(1, 0, address)) {
    const std::vector<std::vector<uint8_t>> addresses = {first->Address(), second->Address()};
    first->Connect(addresses);
    second->Connect(addresses);
  }
  std::unique_ptr<Heartbeat> first, second;
};

TEST(HeartbeatTest, OneThatEndsIsFoundDeadByTheOther) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    if (!Heartbeat::Open(0, {{1, true}}, address, kLimit).ok()) continue;  // A host without IPv6.
    Findings of_first, of_second;
    Pair pair(address);
    ASSERT_TRUE(pair.first->Start(NameOf, of_first.Sink()).ok());
    ASSERT_TRUE(pair.second->Start(NameOf, of_second.Sink()).ok());
    EXPECT_TRUE(of_first.Await(milliseconds(1500)).empty()) << "both live";
    pair.second.reset();
    const auto found = of_first.Await(seconds(20));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].rank, 1);
    EXPECT_EQ(found[0].kind, PeerFinding::Kind::kDead);
    EXPECT_TRUE(of_second.Await(Duration::zero()).empty());
  }
}

// What one of them has been told.
class HeardNews {
 public:
  Heartbeat::News With(std::string own) {
    return {.tell = [own] { return std::vector<uint8_t>(own.begin(), own.end()); },
            .take =
                [this](std::span<const uint8_t> news) {
                  MutexLock lock(mutex_);
                  last_ = std::string(news.begin(), news.end());
                  changed_.NotifyAll();
                }};
  }
  std::string Await() {
    const TimePoint deadline = Now() + seconds(20);
    MutexLock lock(mutex_);
    while (last_.empty() && changed_.WaitUntil(mutex_, deadline)) {
    }
    return last_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::string last_ MYDIST_GUARDED_BY(mutex_);
};

TEST(HeartbeatTest, CarriesNewsAndLivesWithoutThem) {
  Findings of_first, of_second;
  HeardNews heard_by_first, heard_by_second;
  Pair pair;
  const std::string too_long(Heartbeat::kMaxNewsBytes + 1, 'x');
  ASSERT_TRUE(
      pair.first->Start(NameOf, of_first.Sink(), heard_by_first.With("it has done 7")).ok());
  ASSERT_TRUE(pair.second->Start(NameOf, of_second.Sink(), heard_by_second.With(too_long)).ok());
  EXPECT_EQ(heard_by_second.Await(), "it has done 7");
  EXPECT_TRUE(of_first.Await(milliseconds(1500)).empty()) << "the second one's still come";
  pair.first->Stop();
  pair.second->Stop();
}

// Rank 1, made by hand.
class Talker {
 public:
  Talker() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own = Loopback(0);
    socklen_t bytes = sizeof own;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&own), bytes), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&own), &bytes), 0);
    port_ = ntohs(own.sin_port);
  }
  ~Talker() { close(socket_); }
  Talker(const Talker&) = delete;
  Talker& operator=(const Talker&) = delete;

  std::vector<uint8_t> Address() const {
    return EncodePulseAddress({"127.0.0.1", {}, {{0, port_}}});
  }
  // As rank 0 takes it: its secret, and the number in eight bytes.
  void Send(const PulseAddress& to, const PulseAddress::Secret& secret, uint8_t number) const {
    std::vector<uint8_t> bytes(secret.begin(), secret.end());
    bytes.resize(secret.size() + 8);
    bytes[secret.size()] = number;
    const sockaddr_in address = Loopback(to.ports.at(0).port);
    EXPECT_EQ(sendto(socket_, bytes.data(), bytes.size(), 0,
                     reinterpret_cast<const sockaddr*>(&address), sizeof address),
              static_cast<ssize_t>(bytes.size()));
  }

 private:
  static sockaddr_in Loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  const int socket_;
  uint16_t port_ = 0;
};

// A pipe in place of the error output, full at first.
class FullErrorOutput {
 public:
  FullErrorOutput() : saved_(dup(STDERR_FILENO)) {
    EXPECT_EQ(pipe2(ends_.data(), O_CLOEXEC | O_NONBLOCK), 0);
    const std::string block(4096, '.');
    while (write(ends_[1], block.data(), block.size()) > 0) continue;
    EXPECT_EQ(fcntl(ends_[1], F_SETFL, O_WRONLY), 0);  // A writer waits.
    dup2(ends_[1], STDERR_FILENO);
  }
  // Reads until this has come; false: it has not within 20 s.
  bool Await(const std::string& wanted) {
    const TimePoint deadline = Now() + seconds(20);
    std::string text;
    std::array<char, 4096> bytes;
    while (text.find(wanted) == std::string::npos && Now() < deadline) {
      pollfd polled{ends_[0], POLLIN, 0};
      poll(&polled, 1, 100);
      const ssize_t count = read(ends_[0], bytes.data(), bytes.size());
      if (count > 0) text.append(bytes.data(), static_cast<size_t>(count));
    }
    return text.find(wanted) != std::string::npos;
  }
  ~FullErrorOutput() {
    dup2(saved_, STDERR_FILENO);
    for (const int descriptor : {saved_, ends_[0], ends_[1]}) close(descriptor);
  }
  FullErrorOutput(const FullErrorOutput&) = delete;
  FullErrorOutput& operator=(const FullErrorOutput&) = delete;

 private:
  const int saved_;
  std::array<int, 2> ends_{};
};

// As when the user has stopped the terminal by Ctrl-S.
TEST(HeartbeatTest, AWarningThatTheErrorOutputDoesNotTakeStopsNoHeartbeat) {
  Findings of_first, of_second;
  const Talker mute;
  auto opened = Heartbeat::Open(0, {{1, true}, {2, true}}, "127.0.0.1", kLimit);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  const std::unique_ptr<Heartbeat> first = std::move(opened).value();
  auto second = Opened(1, 0);
  const std::vector<std::vector<uint8_t>> addresses = {first->Address(), second->Address(),
                                                       mute.Address()};
  first->Connect(addresses);
  second->Connect(addresses);
  FullErrorOutput output;
  ASSERT_TRUE(first->Start(NameOf, of_first.Sink()).ok());
  ASSERT_TRUE(second->Start(NameOf, of_second.Sink()).ok());
  const bool goes_on = of_second.Await(milliseconds(2500)).empty();
  const bool is_told = output.Await("no heartbeat of rank 2 has come");
  first->Stop();
  second->Stop();
  EXPECT_TRUE(goes_on);
  EXPECT_TRUE(is_told);
}

// Its socket stays open, as that of a process that is stopped.
TEST(HeartbeatTest, OneThatFallsSilentIsFoundWhateverStrangersSend) {
  Findings findings;
  const Talker talker;
  const Talker stranger;
  auto heartbeat = Opened(0, 1);
  const PulseAddress to = *DecodePulseAddress(heartbeat->Address());
  heartbeat->Connect({heartbeat->Address(), talker.Address()});
  ASSERT_TRUE(heartbeat->Start(NameOf, findings.Sink()).ok());
  for (uint8_t number = 1; number < 15; ++number) {
    talker.Send(to, to.secret, number);
    EXPECT_TRUE(findings.Await(milliseconds(100)).empty());
  }
  PulseAddress::Secret guess = to.secret;
  guess[15] ^= 1;
  const TimePoint begin = Now();
  for (uint8_t number = 100; findings.Await(milliseconds(50)).empty(); ++number) {
    ASSERT_LT(Now() - begin, seconds(20));
    talker.Send(to, guess, number);
    talker.Send(to, to.secret, 14);  // A copy.
    stranger.Send(to, to.secret, number);
  }
  const auto found = findings.Await(Duration::zero());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, PeerFinding::Kind::kSilent);
}

TEST(HeartbeatTest, APeerWithoutAnAddressIsNotWatched) {
  Findings findings;
  auto heartbeat = Opened(0, 1);
  heartbeat->Connect({heartbeat->Address(), {}});
  ASSERT_TRUE(heartbeat->Start(NameOf, findings.Sink()).ok());
  EXPECT_TRUE(findings.Await(milliseconds(100)).empty());
}

TEST(HeartbeatTest, AnAddressTravelsWholeAndBrokenOnesAreRefused) {
  const PulseAddress address{"fd00::7", {1, 2, 3}, {{0, 4711}, {9, 65535}}};
  const std::vector<uint8_t> bytes = EncodePulseAddress(address);
  const Result<PulseAddress> decoded = DecodePulseAddress(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, address);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(
        DecodePulseAddress({bytes.begin(), bytes.begin() + static_cast<long>(length)}).ok());
  }
  std::vector<uint8_t> other = bytes;
  other[0] = 9;
  EXPECT_THAT(DecodePulseAddress(other).status().message(), ::testing::HasSubstr("format"));
  other = bytes;
  other[other.size() - 1] = 1;  // A port of 17 bits.
  EXPECT_FALSE(DecodePulseAddress(other).ok());
}

TEST(HeartbeatTest, AnAddressThatIsNotOfThisHostIsAnError) {
  EXPECT_FALSE(Heartbeat::Open(0, {{1, true}}, "198.51.100.1", kLimit).ok());
  EXPECT_FALSE(Heartbeat::Open(0, {{1, true}}, "localhost", kLimit).ok());
}

}  // namespace
}  // namespace mydist
