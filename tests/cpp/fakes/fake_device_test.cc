// The fake device finds every kind of mistake, whatever the streams happen to do. That correct
// programs pass, and that each wait and block counts: staged_conformance_test and StagedOrder.
#include "fakes/fake_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "fakes/device_bench.h"

namespace mydist::testing {
namespace {

using ::testing::HasSubstr;

class FakeDeviceTest : public DevicePaceTest {};
INSTANTIATE_TEST_SUITE_P(Paces, FakeDeviceTest, kEveryPace, NameOfPace);

TEST(FakeDevicePace, LazyStreamsDoNothingUntilSomebodyBlocks) {
  DeviceBench bench({.pace = Pace::kLazy});
  std::vector<int> done;
  const auto put = [&](StreamHandle stream, int number) {
    ExpectOk(bench.device.Enqueue(
        stream, {.name = "note", .work = [&done, number] { done.push_back(number); }}));
    return bench.Record(stream);
  };
  const EventPointer first = put(bench.work, 1);
  const EventPointer second = put(bench.work, 2);
  ExpectOk(bench.device.Wait(bench.other, *first));
  const EventPointer third = put(bench.other, 3);
  ExpectOk(bench.device.Block(*third));
  EXPECT_EQ(done, (std::vector<int>{1, 3}));
  ExpectOk(bench.device.Block(*second));
  EXPECT_EQ(done, (std::vector<int>{1, 3, 2}));
}

struct Mistake {
  const char* name;
  std::function<Status(DeviceBench&)> make;
  std::string words;
};

const std::vector<uint8_t> kForeign(64);

const std::vector<Mistake> kInOrder = {
    {"a wait for an event before the work",
     [](DeviceBench& bench) {
       const EventPointer event = bench.Record(bench.work);
       ExpectOk(bench.ToDevice(bench.work));
       ExpectOk(bench.device.Wait(bench.other, *event));
       return bench.FromDevice(bench.other);
     },
     "nothing puts the one behind the other"},
    // A later read of the same actor does not hide the former one of another.
    {"a write behind one reader of two",
     [](DeviceBench& bench) {
       ExpectOk(bench.device.Copy(bench.on_device.get(), bench.pinned.get(), 8, bench.work));
       ExpectOk(bench.device.Copy(bench.on_device_too.get(), bench.pinned.get(), 8, bench.other));
       ExpectOk(bench.device.Block(*bench.Record(bench.work)));
       return bench.device.HostWrites(bench.pinned.get(), 8, "next batch");
     },
     "on stream 3"},
};

const std::vector<Mistake> kInArguments = {
    {"freed memory",
     [](DeviceBench& bench) {
       const uint8_t* freed = bench.on_device.get();
       bench.on_device.reset();
       return bench.device.Copy(bench.pinned.get(), freed + 8, 8, bench.work);
     },
     "which is freed"},
    {"foreign memory",
     [](DeviceBench& bench) {
       return bench.device.Copy(bench.on_device.get(), kForeign.data(), 64, bench.work);
     },
     "no memory of the device"},
    {"an overrun",
     [](DeviceBench& bench) {
       return bench.device.Copy(bench.on_device.get() + 1, bench.pinned.get(), kBenchBytes,
                                bench.work);
     },
     "beyond the end"},
    {"a copy onto itself",
     [](DeviceBench& bench) {
       return bench.device.Copy(bench.on_device.get() + 8, bench.on_device.get(), 16, bench.work);
     },
     "writes what it reads"},
    {"the host in device memory",
     [](DeviceBench& bench) { return bench.device.HostReads(bench.on_device.get(), 1, "peek"); },
     "the host (peek) touches device memory"},
    {"a conversion between segments that overlap",
     [](DeviceBench& bench) {
       const ConvertSegment segment{bench.on_device.get(), bench.on_device.get() + 4, 4};
       return bench.device.Convert({&segment, 1}, {}, bench.work);
     },
     "segments overlap"},
    {"a conversion that does not exist",
     [](DeviceBench& bench) {
       const ConvertSegment segment{bench.on_device.get(), bench.on_device_too.get(), 4};
       return bench.device.Convert(
           {&segment, 1}, {.from = DataType::kFloat32, .to = DataType::kInt32}, bench.work);
     },
     "does not exist"},
};

TEST_P(FakeDeviceTest, FindsEveryMistake) {
  for (const std::vector<Mistake>* mistakes : {&kInOrder, &kInArguments}) {
    for (const Mistake& mistake : *mistakes) {
      SCOPED_TRACE(mistake.name);
      ExpectViolation(mistake.make, HasSubstr(mistake.words));
    }
  }
}

TEST_P(FakeDeviceTest, FindsMemoryFreedInUse) {
  DeviceBench bench(GetParam());
  ExpectOk(bench.ToDevice(bench.work));
  bench.pinned.reset();
  EXPECT_THAT(bench.device.TakeViolation(), HasSubstr("the host (freeing it) writes"));
}

// Of one process.
TEST_P(FakeDeviceTest, FindsTheMemoryAndTheEventsOfAnotherDevice) {
  FakeDeviceOptions options = GetParam();
  options.process = std::make_shared<FakeProcess>();
  DeviceBench bench(options);
  FakeDevice other(options);
  const auto there = ValueOf(other.Allocate(64));
  EXPECT_FALSE(bench.device.Copy(bench.on_device.get(), there.get(), 64, bench.work).ok());
  EXPECT_THAT(bench.device.TakeViolation(), HasSubstr("of another device"));
  EXPECT_FALSE(other.IsOver(*ValueOf(FakeDevice().Record({}))).ok());
  EXPECT_THAT(other.TakeViolation(), HasSubstr("an event of another device"));
}

TEST(FakeDeviceMemory, WhatIsLeftFailsTheTest) {
  std::shared_ptr<uint8_t> left;
  EXPECT_NONFATAL_FAILURE(
      {
        FakeDevice device;
        left = ValueOf(device.Allocate(8));
      },
      "device memory 1 (8 bytes) is not freed");
  EXPECT_EQ(left.get()[7], FakeMemory::kPoison);
}

}  // namespace
}  // namespace mydist::testing
