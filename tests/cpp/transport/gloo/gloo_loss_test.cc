// What a Gloo job's survivors see when a rank goes away, and what a wrong set-up says.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <latch>
#include <thread>

#include "conformance/control_plane_suite.h"
#include "conformance/soon.h"
#include "transport/gloo/gloo_jobs.h"
#include "transport/gloo/peer_states.h"

namespace mydist {
namespace {

using conformance::Correspondent;

// The product's bound is a second. Here it begins before the rank goes, whose thread may be held up
// on a busy machine; who is not told waits for half a minute (AwaitLoss) or for ever (Exchange).
constexpr std::chrono::seconds kBound{5};

void ExpectLossOf(int rank, const Status& status) {
  ExpectError(status, StatusCode::kPeerLost, {"rank " + std::to_string(rank) + " "});
}

// A rank that goes without a goodbye, as a crashed one does.
void Vanish(Connection& connection) { connection = Connection{}; }

// Runs body(me) on ranks 0 and 1 of three, and rank 2 vanishes as they begin.
void RunWhereRank2Vanishes(const std::function<void(Correspondent&)>& body) {
  std::latch others_are_through(2);  // Or the loss would meet them in Synchronize.
  RunGlooJob(3, [&](Connection& connection) {
    Correspondent me(connection);
    me.Synchronize();
    if (me.rank() == 2) {
      others_are_through.wait();
      return Vanish(connection);
    }
    others_are_through.count_down();
    body(me);
  });
}

TEST(GlooLoss, AnIdleRankIsToldOnceWhoVanished) {
  RunGlooJob(3, [](Connection& connection) {
    Correspondent me(connection);
    me.Synchronize();
    if (me.rank() == 2) return Vanish(connection);
    const TimePoint start = Now();
    const Status lost = me.AwaitLoss();
    EXPECT_LT(Now() - start, kBound);
    ExpectLossOf(2, lost);
    EXPECT_EQ(me.plane().Send(2, {1}).code(), StatusCode::kPeerLost);
    EXPECT_EQ(me.plane().CheckPeer(2).code(), StatusCode::kPeerLost);
    EXPECT_TRUE(me.plane().CheckPeer(1 - me.rank()).ok());
    // The survivors can still talk, and nothing is reported twice.
    const int other = 1 - me.rank();
    me.Send(other, {9});
    EXPECT_EQ(me.ReceiveFrom(other), Bytes{9});
    const Status closed = me.plane().Close(conformance::Soon());
    ExpectLossOf(2, closed);
  });
}

// Handed over is not yet delivered, so all are received before the sender vanishes; that messages
// still waiting in the mailbox come before the loss is shown by its own test.
TEST(GlooLoss, IsReportedAfterTheMessagesThatArrived) {
  RunGlooJob(2, [](Connection& connection) {
    Correspondent me(connection);
    if (me.rank() == 1) {
      for (uint8_t i = 0; i < 20; ++i) me.Send(0, {i});
      EXPECT_EQ(me.ReceiveFrom(0), Bytes{1});  // Rank 0 has them all.
      return Vanish(connection);
    }
    for (uint8_t i = 0; i < 20; ++i) ASSERT_EQ(me.ReceiveFrom(1), Bytes{i});
    me.Send(1, {1});
    const auto lost = conformance::ReceiveBy(me.plane(), conformance::Soon());
    ASSERT_FALSE(lost.ok());
    ExpectLossOf(1, lost.status());
  });
}

// Rank 2 vanishes; rank 0 waits for it, rank 1 waits for rank 0 only. Both must blame rank 2.
TEST(GlooLoss, ATransferFailsNamingTheVanishedRankEvenWhenWaitingForAnother) {
  RunWhereRank2Vanishes([](Correspondent& me) {
    std::vector<uint8_t> memory(1 << 20);
    const ReceiveTransfer receive{me.rank() == 0 ? 2 : 0, memory.data(), 1 << 20};
    const TimePoint start = Now();
    const Status status = me.transport().Exchange({}, {&receive, 1});
    EXPECT_LT(Now() - start, kBound);
    ExpectLossOf(2, status);
    // It stays failed, at once.
    ExpectLossOf(2, me.transport().Exchange({}, {&receive, 1}));
  });
}

// The rank that sends may meet the broken connection before the thread that receives has reported
// it: the words are the same, with the place.
TEST(GlooLoss, ASendIntoAConnectionThatBreaksNamesThePlace) {
  for (int job = 0; job < 10; ++job) {
    RunGlooJob(2, [](Connection& connection) {
      Correspondent me(connection);
      me.Synchronize();
      if (me.rank() == 1) return Vanish(connection);
      const TimePoint deadline = conformance::Soon();
      Status sent;
      while ((sent = me.plane().Send(1, {1})).ok() && Now() < deadline) {
      }
      ExpectError(sent, StatusCode::kPeerLost, {"lost the connection to rank 1 (host "});
    });
  }
}

// As who gives up waiting for the others: this cannot end in order, but the goodbye goes out.
void CloseAlone(Correspondent& me) {
  EXPECT_EQ(me.plane().Close(Now()).code(), StatusCode::kTimeout);
}

// Returns when this rank knows that the other has closed.
void AwaitGoodbyeOf(int peer, Correspondent& me) {
  const TimePoint deadline = conformance::Soon();
  Status sent;
  while ((sent = me.plane().Send(peer, {1})).ok() && Now() < deadline) std::this_thread::yield();
  EXPECT_NE(sent.message().find("has left the job"), std::string::npos) << sent.ToString();
}

// A peer may see the connection of the rank that gives up close before that of the lost rank.
TEST(GlooLoss, ATransferThatIsRefusedForALossTellsTheOthers) {
  std::latch told(1);
  RunWhereRank2Vanishes([&](Correspondent& me) {
    const auto has_left = [&](int peer) {
      const TimePoint deadline = Now() + kBound;
      while (me.plane().CheckPeer(peer).ok() && Now() < deadline) std::this_thread::yield();
      return !me.plane().CheckPeer(peer).ok();
    };
    EXPECT_TRUE(has_left(2));
    if (me.rank() == 1) {
      EXPECT_TRUE(has_left(0));
      return told.count_down();
    }
    uint8_t byte = 0;
    const ReceiveTransfer receive{1, &byte, 1};
    ExpectLossOf(2, me.transport().Exchange({}, {&receive, 1}));
    told.wait();
  });
}

TEST(GlooLoss, ARankThatClosedIsNotALossUntilATransferNeedsIt) {
  std::latch others_do_without_it(2);
  std::latch others_are_done(2);
  RunGlooJob(3, [&](Connection& connection) {
    Correspondent me(connection);
    me.Synchronize();
    if (me.rank() == 2) {
      CloseAlone(me);
      others_are_done.wait();
      return;
    }
    AwaitGoodbyeOf(2, me);
    const int other = 1 - me.rank();
    uint8_t byte = 0;
    const SendTransfer send{other, &byte, 1};
    const ReceiveTransfer receive_other{other, &byte, 1};
    ExpectOk(me.transport().Exchange({&send, 1}, {&receive_other, 1}));
    me.Send(other, {9});
    EXPECT_EQ(me.ReceiveFrom(other), Bytes{9});
    others_do_without_it.arrive_and_wait();  // Who meets the loss first tells the other.
    const ReceiveTransfer receive{2, &byte, 1};
    ExpectLossOf(2, me.transport().Exchange({}, {&receive, 1}));
    others_are_done.count_down();
  });
}

// Rank 0 waits for the one that leaves, whose process lives on, rank 1 for rank 0: both learn which
// rank left first, and why.
TEST(GlooLoss, AFarewellReachesThoseWhoWaitForAnother) {
  std::latch others_are_through(2);
  std::latch others_are_done(2);
  RunGlooJob(3, [&](Connection& connection) {
    Correspondent me(connection);
    me.Synchronize();
    if (me.rank() == 2) {
      others_are_through.wait();
      me.plane().SetFarewell("the disk is full" + std::string(2 * kMaxFarewellBytes, '!'));
      CloseAlone(me);
      others_are_done.wait();
      return;
    }
    others_are_through.count_down();
    uint8_t byte = 0;
    const ReceiveTransfer receive{me.rank() == 0 ? 2 : 0, &byte, 1};
    const Status status = me.transport().Exchange({}, {&receive, 1});
    ExpectLossOf(2, status);
    EXPECT_NE(status.message().find("has left the job: the disk is full!"), std::string::npos)
        << status.message();
    EXPECT_EQ(status.cause(), status.message());
    const Status sent = me.plane().Send(2, {1});
    EXPECT_NE(sent.message().find("the disk is full!"), std::string::npos) << sent.message();
    EXPECT_EQ(me.plane().CheckPeer(2).ToString(), sent.ToString());
    others_are_done.count_down();
  });
}

// The goodbye may be there before the waiting rank has looked at what came ahead of it.
TEST(GlooLoss, WhatWasSentBeforeAGoodbyeArrives) {
  RunGlooJob(2, [](Connection& connection) {
    Correspondent me(connection);
    me.Synchronize();
    std::vector<uint8_t> memory(1 << 20, static_cast<uint8_t>(me.rank()));
    if (me.rank() == 1) {
      const SendTransfer send{0, memory.data(), 1 << 20};
      EXPECT_TRUE(me.transport().Exchange({&send, 1}, {}).ok());
    } else {
      const ReceiveTransfer receive{1, memory.data(), 1 << 20};
      ExpectOk(me.transport().Exchange({}, {&receive, 1}));
      EXPECT_EQ(memory.back(), 1);
    }
    EXPECT_TRUE(me.plane().Close(conformance::Soon()).ok());
  });
}

// While the end of what one rank sent is awaited, another is lost, which might be a consequence and
// is set aside. A transfer that needs that one must fail all the same.
TEST(PeerStates, ALossThatWasSetAsideCountsForWhoNeedsThatRank) {
  PeerStates states(3);
  states.MarkDeparted(1, "");
  ASSERT_EQ(states.BeginWait(nullptr, 1), PeerStates::Patience::kBounded);
  EXPECT_TRUE(states.MarkLost(2, Status::PeerLost("rank 2 (as its receiver says)")));
  EXPECT_TRUE(states.loss().ok());
  states.EndWait();
  ASSERT_EQ(states.BeginWait(nullptr, 2), PeerStates::Patience::kBounded);
  EXPECT_FALSE(states.MarkLost(2, Status::PeerLost("rank 2 (as the transfer says)")));
  states.EndWait();
  ExpectLossOf(2, states.loss());
  EXPECT_EQ(states.cause_rank(), 2);
  EXPECT_FALSE(states.HasDeparted(2));
}

TEST(GlooConnect, AMissingInterfaceNamesThoseThatExist) {
  Config config;
  config.network_interfaces = {"nope0", "nope1"};
  InMemoryRendezvous rendezvous(2);
  RunAsRanks(2, [&](int rank) {
    ExpectError(ConnectGloo(rank, 2, rendezvous.ForRank(rank), config).status(),
                StatusCode::kInvalidArgument, {"'nope0,nope1'", "lo (127.0.0.1)"});
  });
}

// The "other rank" echoes what we say in each round, with a change.
Status ConnectWithAnEcho(const std::function<void(int round, Bytes& other)>& change) {
  Config config;
  config.connect_timeout = std::chrono::milliseconds(200);
  const auto echo = [&, round = 0](const Bytes& mine) mutable -> Result<std::vector<Bytes>> {
    Bytes other = mine;
    change(round++, other);
    return std::vector<Bytes>{mine, other};
  };
  return ConnectGloo(0, 2, echo, config).status();
}

TEST(GlooConnect, ARankThatNeverComesIsNamedAfterTheTimeout) {
  const EndsSoon ends_soon;  // The time-out is 0.2 s.
  // At addresses where nobody listens.
  const Status status = ConnectWithAnEcho([](int, Bytes& other) {
    if (other.size() > 100) other[3] ^= 0x40;  // Another port.
  });
  ExpectError(
      status, StatusCode::kTimeout,
      {"rank 1", "\n  host " + Config{}.HostId() + " uses lo (127.0.0.1) of lo (127.0.0.1)"});
}

TEST(GlooConnect, AddressesOfTheWrongLengthAreRefused) {
  const Status status = ConnectWithAnEcho([](int round, Bytes& other) {
    if (round == 1) other.resize(7);
  });
  ExpectError(status, StatusCode::kVersionMismatch, {"7 bytes"});
}

// A stranger that says nothing is at each port before the rank it is meant for.
TEST(GlooConnect, StrangersThatComeFirstDoNoHarm) {
  std::vector<int> strangers;
  const auto besieged = [&](BootstrapExchange exchange) -> BootstrapExchange {
    return [&, exchange, round = 0](const Bytes& mine) mutable -> Result<std::vector<Bytes>> {
      if (round++ == 1) {  // These are addresses, of one port for each rank.
        const size_t address_bytes = mine.size() / 3;
        for (const size_t place : {1, 2}) {
          sockaddr_storage address{};
          std::memcpy(&address, mine.data() + place * address_bytes,
                      std::min(address_bytes, sizeof address));
          const int stranger = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
          strangers.push_back(stranger);
          EXPECT_EQ(connect(stranger, reinterpret_cast<sockaddr*>(&address), sizeof(sockaddr_in)),
                    0);
        }
      }
      return exchange(mine);
    };
  };
  InMemoryRendezvous rendezvous(3);
  RunAsRanks(3, [&](int rank) {
    BootstrapExchange exchange = rendezvous.ForRank(rank);
    if (rank == 0) exchange = besieged(exchange);
    Result<Connection> connection = ConnectGloo(rank, 3, std::move(exchange), {});
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    conformance::ClosesInOrder(*connection);
  });
  EXPECT_EQ(strangers.size(), 2U);
  for (const int stranger : strangers) close(stranger);
}

TEST(GlooConnect, WrongOptionsAreNamed) {
  const auto nobody = [](const Bytes&) { return std::vector<Bytes>{}; };
  ExpectError(ConnectGloo(2, 2, nobody, {}).status(), StatusCode::kInvalidArgument, {});
  ExpectError(ConnectGloo(0, 2, nullptr, {}).status(), StatusCode::kInvalidArgument,
              {"rendezvous"});
}

TEST(GlooConnect, OneRankNeedsNoPlanes) {
  const auto connection =
      ConnectGloo(0, 1, [](const Bytes& mine) { return std::vector<Bytes>{mine}; }, {});
  ASSERT_TRUE(connection.ok()) << connection.status().ToString();
  EXPECT_EQ(connection->control, nullptr);
  EXPECT_EQ(connection->transport, nullptr);
}

}  // namespace
}  // namespace mydist
