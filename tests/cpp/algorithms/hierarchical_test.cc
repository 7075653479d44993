// Hosts first, then between hosts: every collective, on even and uneven hosts. The order
// of sums: fold_order_test.
#include "algorithms/hierarchical.h"

#include <gtest/gtest.h>

#include <atomic>
#include <tuple>

#include "algorithms/host_ranks.h"
#include "conformance/deep.h"
#include "conformance/every_collective_suite.h"
#include "conformance/fold_order_reference.h"
#include "kernels/element.h"

namespace mydist {
namespace {

using testing::Elements;
using testing::HostRank;
using testing::OnHosts;
using testing::Rank;

// Tensors of the suites take many chunks, and nearly all of them many slices.
constexpr HierarchicalLimits kSmallLimits{.one_slice_bytes = 64, .chunk_bytes = 4096};

// Small limits take all steps that others take.
std::vector<HierarchicalLimits> Limits() {
  const std::vector<HierarchicalLimits> both = {HierarchicalLimits{}, kSmallLimits};
  return InDeep(both, both, {kSmallLimits});
}

// Even, uneven, interleaved hosts; a column whose ranks do not ascend; as many hosts as ranks. An
// ordinary run has uneven hosts, interleaved ones, and hosts of one rank.
std::vector<const char*> Layouts() {
  return InDeep<std::vector<const char*>>(
      {"aabb", "aabbb", "abcdd", "abab", "abba", "aabbcc", "ab"}, {"aabbb", "abab", "abcdd"},
      {"abab", "abcdd"});
}

class HierarchicalTest
    : public ::testing::TestWithParam<std::tuple<const char*, HierarchicalLimits>> {
 protected:
  std::string layout() const { return std::get<0>(GetParam()); }
  HierarchicalLimits limits() const { return std::get<1>(GetParam()); }
  void OnEachRank(const std::function<void(const Rank&)>& body) const {
    OnHosts(layout(), [&](const HostRank& host) {
      Hierarchical collectives(host.groups, host.meter, host.SharedMemory(), limits());
      body(host.With(&collectives));
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, HierarchicalTest,
                         ::testing::Combine(::testing::ValuesIn(Layouts()),
                                            ::testing::ValuesIn(Limits())),
                         [](const auto& instance) {
                           const bool small = std::get<1>(instance.param).chunk_bytes < 10000;
                           return std::string(std::get<0>(instance.param)) +
                                  (small ? "_chunked" : "_whole");
                         });

TEST_P(HierarchicalTest, Conforms) { OnEachRank(testing::CheckEveryCollective); }

TEST_P(HierarchicalTest, BarrierHoldsBackUntilAllHaveCome) {
  std::atomic<int> arrived = 0;
  OnEachRank([&](const Rank& me) { testing::CheckBarrier(me, arrived); });
}

// One host shares memory, the others do not: nobody notices, and the bits are the same.
TEST_P(HierarchicalTest, HostsNeedNotBeAlike) {
  OnHosts(layout(), [&](const HostRank& host) {
    auto local = host.groups.host == 0 ? host.SharedMemory() : nullptr;
    Hierarchical collectives(host.groups, host.meter, std::move(local), limits());
    const auto inputs = testing::ContributionsOf(DataType::kFloat32, host.size(), 30011);
    Elements data = inputs[static_cast<size_t>(host.rank)];
    ExpectOk(collectives.Allreduce(data.data(), 30011, {}));
    const Elements expected =
        testing::FoldedByHosts(Reduction().Resolved(host.size()), host.groups.members, inputs);
    EXPECT_TRUE(data.bytes == expected.bytes);
    testing::CheckMovingCollectives(host.With(&collectives));
  });
}

// 0x1.01p0 + 2^-9 + 2^-9: each small part alone is lost when a partial sum is rounded to bfloat16,
// together they count; 60000 + 60000 - 60000 - 30000 has a partial sum that no float16 can hold.
TEST(HierarchicalRounding, PartialSumsAreNotRounded) {
  OnHosts("aabb", [](const HostRank& host) {
    Hierarchical collectives(host.groups, host.meter, host.SharedMemory());
    constexpr float kParts[] = {0x1p-9F, 1.0F, 0x1p-9F, 0x1p-9F};
    for (const size_t count : {size_t{5}, size_t{100000}}) {
      std::vector<uint16_t> data(count, FloatToBfloat16(kParts[host.rank]));
      ExpectOk(collectives.Allreduce(data.data(), static_cast<int64_t>(count),
                                     {.dtype = DataType::kBfloat16}));
      EXPECT_EQ(data, std::vector<uint16_t>(count, FloatToBfloat16(1.0F + 3 * 0x1p-9F)));
      constexpr float kLarge[] = {60000, 60000, -60000, -30000};
      data.assign(count, FloatToHalf(kLarge[host.rank]));
      ExpectOk(collectives.Allreduce(data.data(), static_cast<int64_t>(count),
                                     {.dtype = DataType::kFloat16}));
      EXPECT_EQ(data, std::vector<uint16_t>(count, FloatToHalf(30000)));
    }
  });
}

TEST(HierarchicalScratch, StaysBoundedAndIsKept) {
  OnHosts("aabb", [](const HostRank& host) {
    constexpr HierarchicalLimits kLimits{.one_slice_bytes = 0, .chunk_bytes = 64 << 10};
    Hierarchical collectives(host.groups, host.meter, host.SharedMemory(), kLimits);
    std::vector<uint16_t> data(1 << 20);
    const Reduction reduction{.dtype = DataType::kBfloat16};
    ExpectOk(collectives.Allreduce(data.data(), 1 << 20, reduction));
    const int64_t after_first = collectives.scratch_capacity_bytes();
    EXPECT_GT(after_first, 0);
    EXPECT_LE(after_first, 4 * kLimits.chunk_bytes);  // Twice of it for the float32 copy.
    ExpectOk(collectives.Allreduce(data.data(), 1 << 20, reduction));
    EXPECT_EQ(collectives.scratch_capacity_bytes(), after_first);
  });
}

}  // namespace
}  // namespace mydist
