#include "controller/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/messages/wire.h"
#include "controller/simulated_job.h"

namespace mydist {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CoordinatorTest, OneRankDecidesAlone) {
  SimulatedJob job({.size = 1});
  job.Announce(0, {MakeRequest("b"), MakeRequest("a")});
  job.RunUntilQuiet();
  job.Announce(0, MakeRequest("a"));
  job.RunUntilQuiet();
  job.Depart(0, "shutdown");
  job.RunUntilQuiet();
  EXPECT_THAT(job.Log(0), ElementsAre("ready b [4]", "ready a [4]", "|", "ready a [4]", "|",
                                      "departed 0: ABORTED: rank 0 has left the job: shutdown",
                                      "finished", "|"));
  EXPECT_EQ(job.coordinator(0).stats().cache_hits, 1u);
}

TEST(CoordinatorTest, WorkIsDueAtOnce) {
  Coordinator coordinator(CoordinatorOptions(), nullptr);
  EXPECT_EQ(coordinator.NextDeadline(), kNever);
  ASSERT_TRUE(coordinator.Announce({MakeRequest("x")}, Now()).ok());
  EXPECT_LT(coordinator.NextDeadline(), Now());
  EXPECT_EQ(coordinator.Negotiate(Now())->size(), 1u);
  EXPECT_EQ(coordinator.NextDeadline(), kNever);
  coordinator.RequestTimeline({.start = true, .mark_cycles = true});
  EXPECT_LT(coordinator.NextDeadline(), Now());
  EXPECT_EQ(coordinator.Negotiate(Now())->at(0).kind, ResponseKind::kTimelineStart);
}

TEST(CoordinatorTest, AnnouncementsAreCheckedAsAWhole) {
  Coordinator coordinator(CoordinatorOptions(), nullptr);
  const auto text = [&](std::vector<Request> requests) {
    const Status status = coordinator.Announce(std::move(requests), Now());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(text({MakeRequest("x"), MakeRequest("x")}), HasSubstr("'x' is still in flight"));
  Request elsewhere = MakeRequest("y");
  elsewhere.process_set = 3;
  EXPECT_THAT(text({MakeRequest("x"), elsewhere}), HasSubstr("process set 3 is unknown"));
  EXPECT_THAT(text({MakeRequest("x"), MakeRequest("z", {-4})}), HasSubstr("[-4] is invalid"));
  EXPECT_TRUE(coordinator.Negotiate(Now())->empty());  // Nothing was announced.
  ASSERT_TRUE(coordinator.Announce({MakeRequest("x")}, Now()).ok());
  EXPECT_THAT(text({MakeRequest("x")}), HasSubstr("'x' is still in flight"));
}

TEST(CoordinatorTest, BatchesComeOneAtATime) {
  SimulatedJob job({.size = 2});
  for (const char* name : {"a", "b"}) {
    job.Announce(1, MakeRequest(name));
    job.Announce(0, MakeRequest(name));
    ASSERT_TRUE(job.Step(1).ok());
    while (job.DeliverOne()) {
    }
    ASSERT_TRUE(job.Step(0).ok());
  }
  while (job.DeliverOne()) {
  }
  // Both segments have arrived, but rank 1 must not fuse what rank 0 did not.
  for (int cycle = 0; cycle < 2; ++cycle) ASSERT_TRUE(job.Step(1).ok());
  EXPECT_THAT(job.Log(1), ElementsAre("ready a [4]", "|", "ready b [4]", "|"));
  EXPECT_EQ(job.Log(0), job.Log(1));
}

// What a rank says when it is handed this message.
Status Handed(int rank, int source, Bytes payload) {
  SimulatedJob job({.size = 5, .radix = 2, .names_hosts = true});
  job.plane(rank).inbox.push_back({source, std::move(payload)});
  return job.Step(rank);
}

TEST(CoordinatorTest, MalformedMessagesNameTheSender) {
  EXPECT_THAT(Handed(1, 3, {}).ToString(),
              "INTERNAL: control message from rank 3 (host h3): malformed control message: it has "
              "0 bytes, expected at least 2");
  EXPECT_EQ(Handed(1, 3, {99, 1}).code(), StatusCode::kVersionMismatch);
  EXPECT_THAT(Handed(1, 3, {99, 1}).message(), HasSubstr("rank 3 (host h3): it uses version 99"));
  EXPECT_THAT(Handed(1, 3, {kWireVersion, 77}).message(), HasSubstr("kind 77 is unknown"));
}

TEST(CoordinatorTest, MessagesFromTheWrongPlaceAreRefused) {
  const Bytes report = EncodeReport(Report())[0];
  const Bytes segment = EncodeSegment(StreamSegment())[0];
  EXPECT_TRUE(Handed(1, 3, report).ok());
  EXPECT_TRUE(Handed(1, 0, segment).ok());
  EXPECT_THAT(Handed(1, 2, report).message(), HasSubstr("not a child of this rank"));
  EXPECT_THAT(Handed(0, 3, report).message(), HasSubstr("not a child of this rank"));
  EXPECT_THAT(Handed(1, 3, segment).message(), HasSubstr("expected it from the parent, rank 0"));
  EXPECT_THAT(Handed(1, 0, {kWireVersion, 3}).message(), HasSubstr("only rank 0 accepts"));
}

// Else the tensor would count as announced for the next time, too.
TEST(CoordinatorTest, AReportThatComesTwiceIsRefused) {
  SimulatedJob job({.size = 2});
  job.AnnounceAll(MakeRequest("x"));
  job.RunUntilQuiet();
  job.Announce(1, MakeRequest("x"));
  ASSERT_TRUE(job.Step(1).ok());
  ASSERT_TRUE(job.DeliverOne());
  auto& inbox = job.plane(0).inbox;
  inbox.push_back(inbox.front());
  EXPECT_THAT(job.Step(0).ToString(),
              HasSubstr("rank 1: got its report number 1, expected number 2"));
}

TEST(CoordinatorTest, ReportsThatCannotBeTrueAreRefused) {
  const auto text = [](auto fill) {
    Report report;
    fill(report);
    return Handed(1, 3, EncodeReport(report)[0]).ToString();
  };
  const auto ready = [](Request request) { return MakeReadiness(request); };
  EXPECT_THAT(text([](Report& r) { r.number = 1; }),
              HasSubstr("got its report number 1, expected number 0"));
  EXPECT_THAT(text([](Report& r) { r.stream_position = 4; }), HasSubstr("stream position 4"));
  EXPECT_THAT(text([](Report& r) { r.sets[0].ready_slots = {2}; }), HasSubstr("cache slot 2"));
  EXPECT_THAT(text([](Report& r) { r.sets[0].invalid_slots = {1u << 30}; }),
              HasSubstr("cache slot"));
  EXPECT_THAT(text([&](Report& r) {
                r.sets[0].ready_requests = {ready(MakeRequest("x")), ready(MakeRequest("x"))};
              }),
              HasSubstr("reported ready twice"));
  EXPECT_THAT(text([&](Report& r) {
                r.sets[0].ready_requests = {ready(MakeRequest("x"))};
                r.sets[0].ready_requests[0].first_dims = {1};
              }),
              HasSubstr("has 1 first dimensions, expected 0"));
  EXPECT_THAT(text([&](Report& r) {
                r.sets[0].ready_requests = {ready(MakeRequest("x"))};
                r.sets[0].ready_requests[0].variants.push_back({MakeRequest("x", {9}), {4}});
              }),
              HasSubstr("outside the sender's subtree"));
  // Rank 1 of three speaks for ranks 1 and 2: two variants would cover them, were they different.
  Request gather = MakeRequest("x");
  gather.op = OpKind::kAllgather;
  Report twice;
  twice.sets[0].ready_requests.emplace_back().variants = {{gather, {1}}, {gather, {2}}};
  SimulatedJob job({.size = 3, .radix = 1});
  job.Announce(0, gather);
  job.plane(0).inbox.push_back({1, EncodeReport(twice)[0]});
  EXPECT_THAT(job.Step(0).ToString(), HasSubstr("the same request as two different ones"));
  EXPECT_THAT(text([&](Report& r) {
                r.sets[0].stalls = {{MakeRequest("x"), {4}, {}}};
              }),
              HasSubstr("outside the sender's subtree as missing"));
  for (const int32_t rank : {0, 17, -1}) {
    const auto refusal = HasSubstr("it reports that rank " + std::to_string(rank) + " has ");
    EXPECT_THAT(text([&](Report& r) { r.joins = {rank}; }), refusal);
    EXPECT_THAT(text([&](Report& r) { r.departures = {{rank, ""}}; }), refusal);
    EXPECT_THAT(text([&](Report& r) { r.thaws = {{rank, false}}; }), refusal);
  }
  EXPECT_EQ(text([](Report& r) { r.thaws = {{3, false}}; }), Status::Ok().ToString());
  EXPECT_THAT(text([&](Report& r) {
                r.joins = {3};
                r.sets[0].ready_requests = {ready(MakeRequest("x"))};
              }),
              HasSubstr("by ranks that do not take part in it or have joined"));
  Request send = MakeRequest("x");
  send.op = OpKind::kSendReceive;
  send.ranks = {1, 4};
  EXPECT_THAT(text([&](Report& r) { r.sets[0].ready_requests = {ready(send)}; }),
              HasSubstr("by ranks that do not take part in it or have joined"));
  Request broadcast = MakeRequest("x");
  broadcast.op = OpKind::kBroadcast;
  broadcast.root_rank = 5;
  EXPECT_THAT(text([&](Report& r) { r.sets[0].ready_requests = {ready(broadcast)}; }),
              HasSubstr("has root 5, expected a rank of process set 0"));
  Request huge = MakeRequest("x", {int64_t{1} << 61});
  EXPECT_THAT(text([&](Report& r) { r.sets[0].ready_requests = {ready(huge)}; }),
              HasSubstr("at most 2^62 bytes"));
}

// A rank that joins although something of it is not answered breaks the protocol, but nobody.
TEST(CoordinatorTest, WhoJoinsTooEarlyIsSurvived) {
  SimulatedJob job({.size = 3});
  for (const int rank : {1, 2}) {
    Report report;
    report.sets[0].ready_requests = {MakeReadiness(MakeRequest("x", {rank}))};
    job.plane(0).inbox.push_back({rank, EncodeReport(report)[0]});
    Report joined;
    joined.number = 1;
    joined.joins = {rank};
    job.plane(0).inbox.push_back({rank, EncodeReport(joined)[0]});
  }
  ASSERT_TRUE(job.Step(0).ok());
  job.Announce(0, MakeRequest("x"));
  ASSERT_TRUE(job.Step(0).ok());
  EXPECT_THAT(job.Errors(0), ::testing::ElementsAre(HasSubstr("disagree on the shape")));
}

TEST(CoordinatorTest, RowsThatCannotBeCountedAreAnError) {
  Request gather = MakeRequest("x", {int64_t{1} << 59});
  gather.op = OpKind::kAllgather;
  SimulatedJob job({.size = 5});
  job.AnnounceAll(gather);
  job.RunUntilQuiet();
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_THAT(job.Errors(rank), ::testing::ElementsAre(HasSubstr("exceed 2^62 bytes")));
  }
}

TEST(CoordinatorTest, SegmentsThatCannotBeTrueAreRefused) {
  const auto text = [](uint64_t start, StreamItem item) {
    StreamSegment segment{start, {std::move(item), StreamItem()}};
    return Handed(1, 0, EncodeSegment(segment)[0]).ToString();
  };
  StreamItem item;
  item.kind = StreamKind::kReadySlot;
  item.slot = 3;
  EXPECT_THAT(text(0, item), HasSubstr("cache slot 3"));
  EXPECT_THAT(text(5, item), HasSubstr("starts at stream position 5, expected 0"));
  item.kind = StreamKind::kInvalidate;
  EXPECT_THAT(text(0, item), HasSubstr("invalidated cache slot 3"));
  item.kind = StreamKind::kReadyAgreement;
  item.agreement = std::make_shared<const Agreement>(Agreement{MakeRequest("x"), {}});
  EXPECT_THAT(text(0, item), HasSubstr("'x' as ready, which this rank has not submitted"));
  Request gather = MakeRequest("x");
  gather.op = OpKind::kAllgather;
  item.agreement = std::make_shared<const Agreement>(Agreement{gather, {1, 2}});
  EXPECT_THAT(text(0, item), HasSubstr("2 first dimensions, expected 5"));
  item.agreement =
      std::make_shared<const Agreement>(Agreement{gather, std::vector<int64_t>(5, INT64_MAX)});
  EXPECT_THAT(text(0, item), HasSubstr("more rows than can be counted"));
  StreamItem joined;
  joined.kind = StreamKind::kAllJoined;
  joined.rank = 0;
  EXPECT_THAT(text(0, joined), HasSubstr("the root reports that all ranks have joined"));
  for (const int rank : {-1, 5, 1 << 30}) {
    StreamItem departed;
    departed.kind = StreamKind::kDeparted;
    departed.rank = rank;
    EXPECT_THAT(text(0, departed),
                HasSubstr("is reported to have left or joined, expected rank 0 to 4"));
  }
}

TEST(CoordinatorTest, AnAgreementMustBeWhatThisRankSubmitted) {
  const auto outcome = [](const Request& agreed) {
    SimulatedJob job({.size = 5, .radix = 2});
    job.Announce(3, MakeRequest("x", {4}));
    StreamItem item;
    item.kind = StreamKind::kReadyAgreement;
    item.agreement = std::make_shared<const Agreement>(Agreement{agreed, {}});
    const StreamSegment segment{0, {item, StreamItem()}};
    job.plane(3).inbox.push_back({1, EncodeSegment(segment)[0]});
    return job.Step(3).ToString();
  };
  EXPECT_EQ(outcome(MakeRequest("x", {4})), "OK");
  EXPECT_THAT(outcome(MakeRequest("x", {5})), HasSubstr("not as this rank has submitted it"));
  Request wider = MakeRequest("x", {4});
  wider.dtype = DataType::kComplex128;
  EXPECT_THAT(outcome(wider), HasSubstr("not as this rank has submitted it"));
  Request elsewhere = MakeRequest("x", {4});
  elsewhere.process_set = 7;
  EXPECT_THAT(outcome(elsewhere), HasSubstr("for another process set than the item says"));
}

// Ranks 3 and 4 are below rank 1, which would take their reports for those of the next call.
TEST(CoordinatorTest, NothingIsReadyThatRanksBelowHaveNotSubmitted) {
  SimulatedJob job({.size = 5, .radix = 2});
  job.Announce(1, MakeRequest("x"));
  StreamItem item;
  item.kind = StreamKind::kReadyAgreement;
  item.agreement = std::make_shared<const Agreement>(Agreement{MakeRequest("x"), {}});
  job.plane(1).inbox.push_back({0, EncodeSegment({0, {item, StreamItem()}})[0]});
  EXPECT_THAT(job.Step(1).ToString(),
              HasSubstr("'x' as ready, which ranks below this one have not submitted"));
}

TEST(CoordinatorTest, ALossDuringADepartureThatDoesNotEndIsOneAfterAWhile) {
  SimulatedJob job({.size = 3});
  job.Depart(2, "shutdown");
  job.plane(2).loss = Status::PeerLost("rank 1 is gone");
  job.RunUntilQuiet();
  const TimePoint grace_end = job.now + std::chrono::seconds(5);
  EXPECT_EQ(job.coordinator(2).NextDeadline(), grace_end);
  job.now = grace_end - Duration(1);
  EXPECT_TRUE(job.Step(2).ok());
  job.now = grace_end;
  EXPECT_EQ(job.Step(2).ToString(), "PEER_LOST: rank 1 is gone");
}

// It was stopped meanwhile, and finds that all have left.
TEST(CoordinatorTest, ALossIsNoneForARankThatHearsTooLateOfTheEnd) {
  SimulatedJob job({.size = 2});
  job.Hold(0, 1);
  for (int rank = 0; rank < 2; ++rank) job.Depart(rank, "shutdown");
  job.plane(1).loss = Status::PeerLost("rank 0 is gone");
  job.RunUntilQuiet();
  job.now += std::chrono::hours(1);
  job.Release();
  while (job.DeliverOne()) {
  }
  ASSERT_TRUE(job.Step(1).ok());
  EXPECT_EQ(job.Log(1).end()[-2], "finished");
}

TEST(CoordinatorTest, ALossSeenInSendingCountsFromTheNextExchange) {
  SimulatedJob job({.size = 2});
  job.Depart(1, "shutdown");
  job.plane(1).lost_peers.insert(0);
  ASSERT_TRUE(job.Step(1).ok());
  EXPECT_EQ(job.coordinator(1).NextDeadline(), kPast) << "to look at the clock";
  ASSERT_TRUE(job.Step(1).ok());
  EXPECT_EQ(job.coordinator(1).NextDeadline(), job.now + std::chrono::seconds(5));
}

}  // namespace
}  // namespace mydist
