// What is added from outside, with one file and one row, passes the suites of what is inside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <memory>
#include <string>

#include "algorithms/registry.h"
#include "conformance/control_plane_suite.h"
#include "conformance/every_collective_suite.h"
#include "conformance/on_every_rank.h"
#include "conformance/transport_suite.h"
#include "job/extension.h"
#include "transport/rank_threads.h"
#include "transport/registry.h"

namespace mydist {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void LoadBoth() {
  const Status loaded = LoadExtensions({STAR_ALLREDUCE, SOCKET_TRANSPORT});
  ASSERT_TRUE(loaded.ok()) << loaded.ToString();
}

Config ConfigWith(const std::map<std::string, std::string>& variables) {
  return Config::From([&](const std::string& name) -> std::optional<std::string> {
           const auto found = variables.find(name);
           if (found == variables.end()) return std::nullopt;
           return found->second;
         })
      .value();
}

class StarRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StarRanks, ::testing::Values(2, 3, 5));

TEST_P(StarRanks, ReducesAsOursDo) {
  LoadBoth();
  const Config config = ConfigWith({{"MYDIST_ALGORITHM", "star"}, {"MYDIST_STAR_CENTRE", "1"}});
  testing::OnEveryRank(GetParam(), [&](Connection& connection) {
    std::vector<int> ranks;
    for (int rank = 0; rank < connection.size; ++rank) ranks.push_back(rank);
    const Topology topology =
        MakeTopology(connection.rank,
                     std::vector<std::string>(static_cast<size_t>(GetParam()), "host"))
            .value();
    const AlgorithmSite site{.config = config,
                             .topology = topology,
                             .ranks = ranks,
                             .transport = connection.transport.get(),
                             .shm = nullptr};
    std::vector<std::unique_ptr<Collectives>> choices;
    choices.push_back(FindAlgorithm("star").value().make(site));
    const BatchTraits sum{OpKind::kAllreduce, DataType::kFloat32, ReduceOp::kSum, -1, 4};
    EXPECT_TRUE(choices.front()->Supports(sum));
    choices.push_back(FindAlgorithm("flat").value().make(site));
    FirstOf star_first(std::move(choices));
    const testing::Rank me{connection.rank, connection.size, &star_first};
    testing::CheckEveryCollective(me);
  });
}

void RunSocketJob(int size, const std::function<void(Connection&)>& body) {
  LoadBoth();
  const TransportRow row = FindTransport("sockets").value();
  EXPECT_FALSE(row.is_automatic);
  InMemoryRendezvous rendezvous(size);
  const Config config;
  RunAsRanks(size, [&](int rank) {
    BackendOptions options;
    options.rank = rank;
    options.size = size;
    options.config = &config;
    options.exchange = rendezvous.ForRank(rank);
    Result<Connection> connection = row.open().value()->Connect(options);
    ASSERT_TRUE(connection.ok()) << connection.status().ToString();
    body(connection.value());
  });
}

class SocketRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, SocketRanks, ::testing::Values(2, 3));

TEST_P(SocketRanks, CarryControlMessages) {
  RunSocketJob(GetParam(), [](Connection& connection) {
    conformance::RunControlPlaneConformance(connection);
    conformance::ClosesInOrder(connection);
  });
}

TEST_P(SocketRanks, CarryTensors) {
  RunSocketJob(GetParam(), [](Connection& connection) {
    testing::RunTransportConformance(*connection.transport);
    testing::RunEveryCollective(*connection.transport);
    EXPECT_TRUE(connection.control->Close(conformance::Soon()).ok());
  });
}

TEST(Sockets, ReportALostRankByName) {
  std::latch has_been_seen(2);  // A survivor that ends is another loss.
  RunSocketJob(3, [&](Connection& connection) {
    conformance::Correspondent me(connection);
    me.Synchronize();
    if (me.rank() == 2) {
      connection = {};
      return;
    }
    const Status loss = me.AwaitLoss();
    ExpectError(loss, StatusCode::kPeerLost, {"rank 2"});
    uint8_t byte = 0;
    const ReceiveTransfer receive{2, &byte, 1};
    EXPECT_EQ(connection.transport->Exchange({}, {&receive, 1}).code(), StatusCode::kPeerLost);
    has_been_seen.arrive_and_wait();
  });
}

TEST(ExtensionKnob, IsASettingLikeOurs) {
  LoadBoth();
  EXPECT_EQ(Knobs().back().variable, "MYDIST_STAR_CENTRE");
  const Config config = ConfigWith({{"MYDIST_STAR_CENTRE", "3"}});
  EXPECT_EQ(config.extra.at("MYDIST_STAR_CENTRE"), "3");
  EXPECT_THAT(config.Digest(), HasSubstr("MYDIST_STAR_CENTRE=3\n"));
  const auto bad = Config::From([](const std::string& name) -> std::optional<std::string> {
    if (name == "MYDIST_STAR_CENTRE") return "left";
    return std::nullopt;
  });
  EXPECT_EQ(bad.status().message(),
            "MYDIST_STAR_CENTRE='left' is not valid: expected an integer from 0 to 999999");
  EXPECT_THAT(UnknownVariables({"MYDIST_STAR_CENTER"}),
              ::testing::ElementsAre(HasSubstr("did you mean MYDIST_STAR_CENTRE?")));
}

TEST(Extensions, AreRefusedWithTheReason) {
  EXPECT_THAT(LoadExtensions({"/nowhere/lib.so"}).ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("MYDIST_PLUGINS: /nowhere/lib.so"),
                    HasSubstr("cannot be loaded")));
  EXPECT_THAT(LoadExtensions({"libm.so.6"}).ToString(), HasSubstr("is not an extension of mydist"));
  LoadBoth();
  LoadBoth();  // Once is enough, and twice does no harm.
  EXPECT_THAT(RegisterAlgorithm(FindAlgorithm("star").value()).ToString(),
              AllOf(HasSubstr("'star' cannot be added"), HasSubstr("MYDIST_ALGORITHM")));
  AlgorithmRow renamed = FindAlgorithm("star").value();
  renamed.name = "Star two";
  EXPECT_THAT(RegisterAlgorithm(renamed).ToString(), HasSubstr("is not valid; expected up to 64"));
  TransportRow transport = FindTransport("sockets").value();
  transport.name = std::string(65, 's');
  EXPECT_THAT(RegisterTransport(transport).ToString(),
              HasSubstr("is not valid; expected up to 64"));
  ExtraKnob knob;
  knob.is_allowed = [](const std::string&) { return true; };
  for (const char* taken : {"MYDIST_RANK", "MYDIST_CACHE_CAPACITY", "PATH"}) {
    knob.knob.variable = taken;
    EXPECT_THAT(RegisterKnob(knob).ToString(), HasSubstr("cannot be added")) << taken;
  }
  EXPECT_THAT(FindAlgorithm("tar").status().message(),
              HasSubstr("MYDIST_ALGORITHM='tar' is not valid: expected auto, shared_memory, "
                        "hierarchical, flat or star"));
  EXPECT_THAT(FindTransport("socket").status().message(),
              HasSubstr("expected auto, local, mpi, gloo or sockets"));
}

}  // namespace
}  // namespace mydist
