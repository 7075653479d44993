// What the probe of allreduces between GPUs works on.
#include "planner/path_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "algorithms/device/lone_collectives.h"
#include "algorithms/rank_ordered_collectives.h"
#include "fakes/device_bench.h"
#include "memory/device/ipc_port.h"

namespace mydist::testing {
namespace {

// One rank alone keeps what it sums. The fake device gives out memory that is full of garbage.
TEST(IpcProbe, SumsZeros) {
  FakeDevice device;
  const StreamSeat seat{.device = &device, .stream = ValueOf(device.CreateStream())};
  const std::shared_ptr<uint8_t> memory = ValueOf(device.Allocate(kIpcHalfBytes));
  LoneCollectives alone(seat);
  RankOrderedCollectives on_host(nullptr);
  ExpectFine(MeasureIpcLimit({.seat = seat,
                              .memory = memory.get(),
                              .over_ipc = &alone,
                              .otherwise = &alone,
                              .exchange = &on_host,
                              .size = 1})
                 .status());
  const std::shared_ptr<uint8_t> seen = ValueOf(device.AllocatePinned(kIpcHalfBytes));
  ExpectFine(device.Copy(seen.get(), memory.get(), kIpcHalfBytes, seat.stream));
  ExpectFine(device.Block(*ValueOf(device.Record(seat.stream))));
  EXPECT_EQ(std::count(seen.get(), seen.get() + kIpcHalfBytes, 0), kIpcHalfBytes);
}

}  // namespace
}  // namespace mydist::testing
