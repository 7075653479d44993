// What a host sends to the others, counted by the meter, against what decision 0012 promises.
#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "algorithms/host_ranks.h"
#include "conformance/deep.h"

namespace mydist {
namespace {

using testing::HostRank;
using testing::OnHosts;

using Operation = std::function<Status(Collectives& collectives, const HostRank& host)>;

struct Traffic {
  std::vector<int64_t> bytes;  // That each host sent.
  std::vector<int64_t> messages;

  int64_t total_bytes() const { return Total(bytes); }
};

// Of one call, once all ranks have made it.
Traffic TrafficOf(const std::string& layout, bool flat, const Operation& operation) {
  std::array<std::atomic<int64_t>, 8> bytes{};
  std::array<std::atomic<int64_t>, 8> messages{};
  int hosts = 0;
  for (const char host : layout) hosts = std::max(hosts, host - 'a' + 1);
  OnHosts(layout, [&](const HostRank& host) {
    std::unique_ptr<Collectives> collectives;
    if (flat) {
      collectives = std::make_unique<RankOrderedCollectives>(host.meter);
    } else {
      collectives = std::make_unique<Hierarchical>(host.groups, host.meter, host.SharedMemory());
    }
    ExpectOk(operation(*collectives, host));
    bytes[static_cast<size_t>(host.groups.host)] += host.meter->sent_bytes();
    messages[static_cast<size_t>(host.groups.host)] += host.meter->sent_count();
  });
  return {{bytes.begin(), bytes.begin() + hosts}, {messages.begin(), messages.begin() + hosts}};
}

Operation AllreduceOf(DataType dtype, int64_t count, ReduceOp op = ReduceOp::kSum) {
  return [=](Collectives& collectives, const HostRank&) {
    testing::Elements data(dtype, count);
    return collectives.Allreduce(data.data(), count, {.dtype = dtype, .op = op});
  };
}

using Bytes64 = std::vector<int64_t>;

// 2 n (N - 1) / N = n for two hosts, whatever n is.
TEST(HierarchicalBytes, TwoHostsSendWhatTheFormulaSays) {
  for (const std::string layout : {"aabb", "aabbb", "abab", "aaabbb", "abbb"}) {
    for (const int64_t count : {1, 7, 1000, 16384, 16389, 100003, 1 << 20, 3000017}) {
      const Traffic traffic = TrafficOf(layout, false, AllreduceOf(DataType::kFloat32, count));
      EXPECT_EQ(traffic.bytes, (Bytes64{4 * count, 4 * count})) << layout << " " << count;
    }
  }
}

TEST(HierarchicalBytes, MoreHostsSendWhatTheFormulaSaysWhenItDivides) {
  for (const int64_t n : {int64_t{3} << 20, InDeep<int64_t>(48, 48, 6) << 20}) {
    const auto operation = AllreduceOf(DataType::kFloat32, n / 4);
    EXPECT_EQ(TrafficOf("aabbcc", false, operation).bytes, Bytes64(3, 2 * n * 2 / 3));
    EXPECT_EQ(TrafficOf("abcdd", false, operation).bytes, Bytes64(4, 2 * n * 3 / 4));
  }
}

// Each slice costs its bytes, and N - 2 times the host's own part of it; cut as slices.h says.
TEST(HierarchicalBytes, UnevenSlicesAreCountedExactly) {
  constexpr int64_t kCount = 300007;
  Bytes64 expected(3, 0);
  for (int place = 0; place < 2; ++place) {
    const Slice slice = EvenSlice(kCount, 4, 2, place);
    for (int host = 0; host < 3; ++host) {
      expected[static_cast<size_t>(host)] +=
          4 * (slice.count + EvenSlice(slice.count, 4, 3, host).count);
    }
  }
  const Traffic traffic = TrafficOf("aabbcc", false, AllreduceOf(DataType::kFloat32, kCount));
  EXPECT_EQ(traffic.bytes, expected);
  EXPECT_EQ(traffic.total_bytes(), 2 * 4 * kCount * 2);
  // All at once when small.
  EXPECT_EQ(TrafficOf("aabbcc", false, AllreduceOf(DataType::kFloat32, 100)).bytes,
            Bytes64(3, 2 * 400));
}

// Partial sums of 16-bit floats travel as float32, results as 16 bits; what is not rounded does not
// grow.
TEST(HierarchicalBytes, SixteenBitSumsCostHalfAsMuchAgain) {
  constexpr int64_t kCount = 1 << 20;
  const auto bytes_of = [&](ReduceOp op) {
    return TrafficOf("aabb", false, AllreduceOf(DataType::kBfloat16, kCount, op)).bytes;
  };
  EXPECT_EQ(bytes_of(ReduceOp::kSum), Bytes64(2, 3 * kCount));
  EXPECT_EQ(bytes_of(ReduceOp::kMax), Bytes64(2, 2 * kCount));
}

TEST(HierarchicalBytes, SmallTensorsAreOneMessage) {
  const Traffic traffic = TrafficOf("aaabbb", false, AllreduceOf(DataType::kFloat32, 256));
  EXPECT_EQ(traffic.bytes, Bytes64(2, 1024));
  EXPECT_EQ(traffic.messages, Bytes64(2, 1));
}

TEST(HierarchicalBytes, OtherCollectivesCrossOnce) {
  static constexpr int64_t kBytes = 3 << 20;
  const auto broadcast = [](Collectives& collectives, const HostRank&) {
    std::vector<uint8_t> data(kBytes);
    return collectives.Broadcast(data.data(), kBytes, 1);
  };
  EXPECT_EQ(TrafficOf("aabb", false, broadcast).bytes, (Bytes64{kBytes, 0}));
  EXPECT_EQ(TrafficOf("aabbcc", false, broadcast).total_bytes(), 2 * kBytes);
  const auto allgather = [](Collectives& collectives, const HostRank& host) {
    const std::vector<int64_t> counts(static_cast<size_t>(host.size()), kBytes);
    std::vector<uint8_t> input(kBytes);
    std::vector<uint8_t> output(static_cast<size_t>(kBytes * host.size()));
    return collectives.Allgather(input.data(), output.data(), counts);
  };
  EXPECT_EQ(TrafficOf("aabbb", false, allgather).bytes, (Bytes64{2 * kBytes, 3 * kBytes}));
  EXPECT_EQ(TrafficOf("aabbb", true, allgather).bytes, (Bytes64{6 * kBytes, 6 * kBytes}));
  const auto reduce = [](Collectives& collectives, const HostRank&) {
    std::vector<uint8_t> data(kBytes);
    return collectives.Reduce(data.data(), data.data(), kBytes / 4, {}, 0);
  };
  // The root's host contributes to the slices that the other folds, which sends all it has.
  EXPECT_EQ(TrafficOf("aabb", false, reduce).bytes, (Bytes64{kBytes / 2, kBytes}));
}

TEST(HierarchicalBytes, ReducescatterSendsOnlyWhatIsElsewhere) {
  static constexpr int64_t kCount = 1 << 18;  // For each rank.
  const auto operation = [](Collectives& collectives, const HostRank& host) {
    const std::vector<int64_t> counts(static_cast<size_t>(host.size()), kCount);
    std::vector<float> input(static_cast<size_t>(kCount * host.size()));
    std::vector<float> output(kCount);
    return collectives.Reducescatter(input.data(), output.data(), counts, {});
  };
  // n (N - 1) / N where hosts are even; in general what the ranks elsewhere get.
  EXPECT_EQ(TrafficOf("aabb", false, operation).bytes, Bytes64(2, 2 * 4 * kCount));
  EXPECT_EQ(TrafficOf("aabbb", false, operation).bytes, (Bytes64{3 * 4 * kCount, 2 * 4 * kCount}));
  EXPECT_EQ(TrafficOf("aabb", true, operation).bytes, Bytes64(2, 4 * 4 * kCount));
}

TEST(HierarchicalBytes, ABarrierIsAMessagePerHost) {
  const auto barrier = [](Collectives& collectives, const HostRank&) {
    return collectives.Barrier();
  };
  EXPECT_EQ(TrafficOf("aabbb", false, barrier).messages, Bytes64(2, 1));
  EXPECT_EQ(TrafficOf("aabbcc", false, barrier).messages, Bytes64(3, 2));
}

}  // namespace
}  // namespace mydist
