// One rank alone has the results that the host's collectives have, at every pace of the device, and
// its host never waits.
#include "algorithms/device/staged_collectives.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "algorithms/device/through_device.h"
#include "algorithms/rank_ordered_collectives.h"
#include "conformance/adasum_suite.h"
#include "conformance/every_collective_suite.h"
#include "conformance/rooted_suite.h"
#include "fakes/device_bench.h"

namespace mydist::testing {
namespace {

class Lone : public ::testing::TestWithParam<FakeDeviceOptions> {
 protected:
  FakeDevice device_{GetParam()};
  const StreamHandle stream_ = ValueOf(device_.CreateStream());
  LoneCollectives lone_{{.device = &device_, .stream = stream_}};
  ThroughDevice collectives_{&device_, stream_, 0, &lone_, ThroughDevice::HostBlocks::kNever};
  const Rank me_{0, 1, &collectives_};
};
INSTANTIATE_TEST_SUITE_P(Paces, Lone,
                         ::testing::Values(FakeDeviceOptions{.pace = Pace::kLazy},
                                           FakeDeviceOptions{.seed = 1}),
                         NameOfPace);

TEST_P(Lone, MovesBytes) {
  CheckMovingCollectives(me_);
  CheckMovingRooted(me_);
}

TEST_P(Lone, Reduces) {
  for (const DataType dtype : kTypesOfEveryKind) {
    CheckReducingCollectives(me_, dtype);
    CheckReducingRooted(me_, dtype);
  }
}

TEST_P(Lone, SumsAdaptively) {
  for (const DataType dtype : kAdasumTypes) RunAdasumConformance(me_, dtype);
}

// Where both factors round, it is in this order.
TEST_P(Lone, ScalesWithTheBitsOfTheHost) {
  RankOrderedCollectives on_host(nullptr);
  for (const DataType dtype : kTypesOfEveryKind) {
    if (!HasMeaning(ReduceOp::kSum, dtype) || dtype == DataType::kBool) continue;
    const Elements input = ContributionsOf(dtype, 1, 1000).front();
    for (const auto& [prescale, postscale, divisor] :
         {std::tuple{1.0 / 3, 1.0, int64_t{1}}, std::tuple{1.0, 1.7, int64_t{3}},
          std::tuple{1.0 / 3, 1.7, int64_t{7}}}) {
      const Reduction reduction{.dtype = dtype,
                                .op = ReduceOp::kSum,
                                .prescale = prescale,
                                .postscale = postscale,
                                .divisor = divisor};
      Elements expected = input;
      ExpectOk(on_host.Allreduce(expected.data(), input.count(), reduction));
      Elements scaled = input;
      ExpectOk(collectives_.Allreduce(scaled.data(), input.count(), reduction));
      EXPECT_TRUE(scaled.bytes == expected.bytes) << DataTypeName(dtype) << " × " << prescale;
    }
  }
}

}  // namespace
}  // namespace mydist::testing
