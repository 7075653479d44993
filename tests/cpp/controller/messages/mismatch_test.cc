// Ranks disagree: every rank gets the same error, whatever differs, wherever in the tree the rank
// that differs sits, whether or not the tensor is cached; and the job goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "controller/simulated_job.h"

namespace mydist {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* kMismatchAdvice = " on every rank, or give the tensors different names.";

struct Difference {
  const char* name;
  std::function<void(Request&)> base;     // What all ranks request,
  std::function<void(Request&)> deviate;  // and how one rank departs from it.
  std::string head;                       // From "ranks disagree on" to ":".
  std::string usual;                      // The table's values.
  std::string other;
  std::string properties;
};

void Nothing(Request&) {}

std::vector<Difference> Differences() {
  return {
      {"op", Nothing, [](Request& r) { r.op = OpKind::kBroadcast, r.root_rank = 0; }, "op",
       "allreduce", "broadcast", "op"},
      {"dtype", Nothing, [](Request& r) { r.dtype = DataType::kBfloat16; },
       "dtype of this allreduce", "float32", "bfloat16", "dtype"},
      {"shape", Nothing,
       [](Request& r) {
         r.shape = Shape({3, 2});
       },
       "shape of this allreduce", "[2, 3]", "[3, 2]", "shape"},
      {"reduce_op", Nothing, [](Request& r) { r.reduce_op = ReduceOp::kMax; },
       "reduce op of this allreduce", "Sum", "Max", "reduce op"},
      {"scale", Nothing, [](Request& r) { r.postscale = 0.5; }, "scale factors of this allreduce",
       "prescale 1, postscale 1", "prescale 1, postscale 0.5", "scale factors"},
      {"root",
       [](Request& r) {
         r.op = OpKind::kBroadcast;
         r.root_rank = 0;
       },
       [](Request& r) { r.root_rank = 1; }, "root rank of this broadcast", "root 0", "root 1",
       "root rank"},
      {"device", Nothing, [](Request& r) { r.device = 1; }, "device of this allreduce", "CPU",
       "GPU", "device"},
      {"group", Nothing,
       [](Request& r) {
         r.group = "g";
         r.group_size = 2;
       },
       "group of this allreduce", "no group", "group 'g' of 2", "group"},
      {"row", [](Request& r) { r.op = OpKind::kAllgather; },
       [](Request& r) {
         r.shape = Shape({7, 4});
       },
       "shape of this allgather", "[*, 3]", "[*, 4]", "shape"},
      {"several", Nothing,
       [](Request& r) {
         r.dtype = DataType::kInt32;
         r.shape = Shape();
         r.reduce_op = ReduceOp::kMin;
       },
       "dtype, shape and reduce op of this allreduce", "float32, [2, 3], Sum", "int32, [], Min",
       "dtype, shape and reduce op"},
  };
}

// A rank of the 5-rank tree of radix 2 that departs from the others, as the table lists them: the
// root, an inner vertex, a leaf.
struct Deviant {
  int rank;
  const char* others;
};
constexpr Deviant kDeviants[] = {{0, "ranks 1-4"}, {1, "ranks 0, 2-4"}, {4, "ranks 0-3"}};
constexpr int kSize = 5;

std::string ExpectedText(const Difference& difference, const Deviant& deviant) {
  const std::string usual = std::string("\n  ") + deviant.others + ": " + difference.usual;
  const std::string other = "\n  rank " + std::to_string(deviant.rank) + ": " + difference.other;
  return "MISMATCH: tensor 'grad.w': ranks disagree on the " + difference.head + ":" +
         (deviant.rank == 0 ? other + usual : usual + other) + "\nSubmit it with the same " +
         difference.properties + kMismatchAdvice;
}

void AnnounceAll(SimulatedJob& job, const Difference& difference, int deviant) {
  for (int rank = 0; rank < kSize; ++rank) {
    Request request = MakeRequest("grad.w", {2, 3});
    difference.base(request);
    if (rank == deviant) difference.deviate(request);
    job.Announce(rank, request);
  }
  job.RunUntilQuiet();
}

void ExpectMismatch(const Difference& difference, const Deviant& deviant, uint32_t seed) {
  SimulatedJob job({.size = kSize, .radix = 2, .cache_capacity = 4, .seed = seed});
  const bool is_cached = seed % 2 == 0;
  if (is_cached) AnnounceAll(job, difference, -1);
  AnnounceAll(job, difference, deviant.rank);
  for (int rank = 0; rank < kSize; ++rank) {
    ASSERT_THAT(job.Errors(rank), ElementsAre(ExpectedText(difference, deviant))) << rank;
    ASSERT_EQ(job.Log(rank), job.Log(0));
  }
  AnnounceAll(job, difference, -1);
  ASSERT_THAT(job.Log(0).back(), "|");
  ASSERT_THAT(job.Log(0).end()[-2], ::testing::StartsWith("ready grad.w"));
}

TEST(MismatchTest, EveryRankIsToldTheSame) {
  for (const Difference& difference : Differences()) {
    for (const Deviant& deviant : kDeviants) {
      SCOPED_TRACE(difference.name + std::string(" of rank ") + std::to_string(deviant.rank));
      for (uint32_t seed = 0; seed < 8; ++seed) ExpectMismatch(difference, deviant, seed);
    }
  }
}

// What the first ranks have found in their inputs; all others accept theirs.
void AnnounceValues(SimulatedJob& job, const std::vector<InputValues>& values) {
  for (size_t rank = 0; rank < 4; ++rank) {
    Request request = MakeRequest("x");
    if (rank < values.size()) request.values = values[rank];
    job.Announce(static_cast<int>(rank), request);
  }
  job.RunUntilQuiet();
}

TEST(InputValuesTest, WhatARankDoesNotAcceptFailsOnAllAndNothingAfterIt) {
  constexpr InputValues kNan = InputValues::kNan;
  constexpr InputValues kInfinite = InputValues::kInfinite;
  const std::string head = "MISMATCH: tensor 'x': the input of this allreduce is not finite:";
  const std::string advice =
      "\nFind out where the number comes from, or set MYDIST_CHECK_FINITE=0 to pass it on.";
  const std::vector<std::pair<std::vector<InputValues>, std::string>> cases = {
      {{InputValues::kAccepted, kNan}, "\n  rank 1: NaN"},
      {{kInfinite, kNan, kNan}, "\n  rank 0: infinite\n  ranks 1, 2: NaN"},
      {{kNan, kNan, kNan, kNan}, "\n  ranks 0-3: NaN"},
  };
  for (const auto& [values, rows] : cases) {
    for (const int steps : {0, 1, 20}) {  // New, cached and in a frozen schedule.
      SimulatedJob job({.size = 4, .radix = 2, .freeze_after = 3});
      for (int step = 0; step < steps; ++step) AnnounceValues(job, {});
      AnnounceValues(job, values);
      AnnounceValues(job, {});
      for (int rank = 0; rank < 4; ++rank) {
        EXPECT_THAT(job.Errors(rank), ElementsAre(head + rows + advice)) << rank;
        EXPECT_EQ(job.Log(rank).end()[-2], "ready x [4]") << rank;
      }
    }
  }
}

TEST(InputValuesTest, AGroupFailsTogether) {
  SimulatedJob job({.size = 3, .radix = 2});
  for (int rank = 0; rank < 3; ++rank) {
    Request a = MakeRequest("a");
    a.group = "g";
    a.group_size = 2;
    Request b = a;
    b.name = "b";
    b.values = InputValues::kNan;
    job.Announce(rank, {a, b});
  }
  job.RunUntilQuiet();
  EXPECT_EQ(job.Errors(1).size(), 2u);
  EXPECT_THAT(job.Log(1), ::testing::Not(::testing::Contains(::testing::StartsWith("ready"))));
}

TEST(MismatchTextTest, NamesHostsAndGroupsEqualRows) {
  SimulatedJob job({.size = 6, .radix = 2, .names_hosts = true});
  for (int rank = 0; rank < 6; ++rank) {
    job.Announce(rank, MakeRequest("x", rank == 4 ? std::vector<int64_t>{9}
                                                  : std::vector<int64_t>{rank % 2}));
  }
  job.RunUntilQuiet();
  EXPECT_THAT(job.Errors(3),
              ElementsAre("MISMATCH: tensor 'x': ranks disagree on the shape of this allreduce:"
                          "\n  ranks 0, 2 (hosts h0, h2): [0]"
                          "\n  ranks 1, 3, 5 (hosts h1, h3, h5): [1]"
                          "\n  rank 4 (host h4): [9]"
                          "\nSubmit it with the same shape" +
                          std::string(kMismatchAdvice)));
}

TEST(MismatchTextTest, ManyVariantsAreCounted) {
  SimulatedJob job({.size = 100, .radix = 3});
  for (int rank = 0; rank < 100; ++rank) job.Announce(rank, MakeRequest("x", {rank}));
  job.RunUntilQuiet();
  ASSERT_EQ(job.Errors(57).size(), 1u);
  EXPECT_THAT(job.Errors(57)[0], ::testing::HasSubstr("\n  36 more ranks have other values"));
  EXPECT_EQ(job.Errors(0), job.Errors(99));
}

TEST(MismatchGroupTest, AllMembersFailWithOne) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SimulatedJob job({.size = 4, .radix = 2, .seed = seed});
    const auto announce = [&](int odd_one) {
      for (int rank = 0; rank < 4; ++rank) {
        Request a = MakeRequest("a");
        a.group = "g";
        a.group_size = 2;
        Request b = a;
        b.name = "b";
        if (rank == odd_one) b.shape = Shape({5});
        job.Announce(rank, {a, b});
      }
      job.RunUntilQuiet();
    };
    announce(-1);
    announce(3);
    const std::string cause =
        "tensor 'b': ranks disagree on the shape of this allreduce:\n  ranks 0-2: [4]\n  rank 3: "
        "[5]\nSubmit it with the same shape" +
        std::string(kMismatchAdvice);
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(job.Errors(rank),
                  ::testing::UnorderedElementsAre(
                      "MISMATCH: tensor 'a' fails with its group 'g', whose members complete "
                      "together or not at all: " +
                          cause,
                      "MISMATCH: " + cause));
    }
    announce(-1);
    EXPECT_THAT(job.Log(2).end()[-2], ::testing::StartsWith("ready"));
    EXPECT_THAT(job.Log(2).end()[-3], ::testing::StartsWith("ready"));
  }
}

// Rank 1 thinks the group is smaller: its third member would otherwise wait for ever on rank 0.
TEST(MismatchGroupTest, DisagreementOnTheGroupEndsAllItsMembers) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SimulatedJob job({.size = 3, .radix = 1, .seed = seed});
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<Request> members;
      const int32_t count = rank == 1 ? 2 : 3;
      for (int32_t i = 0; i < count; ++i) {
        members.push_back(MakeRequest("m" + std::to_string(i)));
        members.back().group = "g";
        members.back().group_size = count;
      }
      job.Announce(rank, members);
    }
    job.RunUntilQuiet();
    EXPECT_EQ(job.Errors(0).size(), 3u);
    EXPECT_EQ(job.Errors(1).size(), 2u);
    EXPECT_EQ(job.Errors(2).size(), 3u);
    job.AnnounceAll(MakeRequest("m2"));
    job.RunUntilQuiet();
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(job.Log(rank).end()[-2], "ready m2 [4]");
  }
}

TEST(MismatchTest, WhatMayDifferDoesNotMatter) {
  SimulatedJob job({.size = 3, .radix = 1});
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 3; ++rank) {
      Request on_gpu = MakeRequest("gpu");
      on_gpu.device = rank;
      Request exchanged = MakeRequest("alltoall", {rank + round, 2});
      exchanged.op = OpKind::kAlltoall;
      exchanged.reduce_op = rank == 0 ? ReduceOp::kMax : ReduceOp::kSum;
      exchanged.prescale = rank;
      Request barrier = MakeRequest("barrier", {});
      barrier.op = OpKind::kBarrier;
      barrier.dtype = rank == 0 ? DataType::kInt8 : DataType::kFloat32;
      job.Announce(rank, {on_gpu, exchanged, barrier});
    }
    job.RunUntilQuiet();
  }
  EXPECT_THAT(job.Errors(0), IsEmpty());
  EXPECT_EQ(job.coordinator(2).stats().cache_hits, 3u);
}

}  // namespace
}  // namespace mydist
