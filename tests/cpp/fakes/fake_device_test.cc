// The fake device: correct programs pass and compute the right thing, and every kind of mistake is
// found, whatever the streams happen to do.
#include "fakes/fake_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "fakes/device_bench.h"

namespace mydist::testing {
namespace {

using ::testing::HasSubstr;

class FakeDeviceTest : public DevicePaceTest {};
INSTANTIATE_TEST_SUITE_P(Paces, FakeDeviceTest, kEveryPace, NameOfPace);

TEST_P(FakeDeviceTest, CopiesThereAndBackOverTwoStreams) {
  DeviceBench bench(GetParam());
  for (const uint8_t value : {7, 8, 9}) {
    bench.Fill(value);
    ExpectFine(bench.ToDevice(bench.work));
    ExpectFine(bench.device.Wait(bench.other, *bench.Record(bench.work)));
    ExpectFine(bench.FromDevice(bench.other));
    ExpectFine(bench.device.Block(*bench.Record(bench.other)));
    ExpectFine(bench.device.HostReads(bench.pinned_too.get(), kBenchBytes, "result"));
    EXPECT_THAT(std::vector<uint8_t>(bench.pinned_too.get(), bench.pinned_too.get() + kBenchBytes),
                ::testing::Each(value));
  }
  EXPECT_EQ(bench.device.TakeViolation(), "");
}

TEST(FakeDevicePace, LazyStreamsDoNothingUntilSomebodyBlocks) {
  DeviceBench bench({.pace = Pace::kLazy});
  std::vector<int> done;
  const auto put = [&](StreamHandle stream, int number) {
    ExpectFine(bench.device.Enqueue(
        stream, {.name = "note", .work = [&done, number] { done.push_back(number); }}));
    return bench.Record(stream);
  };
  const EventPointer first = put(bench.work, 1);
  const EventPointer second = put(bench.work, 2);
  ExpectFine(bench.device.Wait(bench.other, *first));
  const EventPointer third = put(bench.other, 3);
  ExpectFine(bench.device.Block(*third));
  EXPECT_EQ(done, (std::vector<int>{1, 3}));
  ExpectFine(bench.device.Block(*second));
  EXPECT_EQ(done, (std::vector<int>{1, 3, 2}));
}

struct Mistake {
  const char* name;
  std::function<Status(DeviceBench&)> make;
  std::string words;
};

const std::vector<uint8_t> kForeign(64);

const std::vector<Mistake> kInOrder = {
    {"a read before its event",
     [](DeviceBench& bench) {
       ExpectFine(bench.ToDevice(bench.work));
       const EventPointer event = bench.Record(bench.work);
       const Status early = bench.FromDevice(bench.other);
       return early.ok() ? bench.device.Wait(bench.other, *event) : early;
     },
     "reads byte 0 of device memory"},
    {"a wait for an event before the work",
     [](DeviceBench& bench) {
       const EventPointer event = bench.Record(bench.work);
       ExpectFine(bench.ToDevice(bench.work));
       ExpectFine(bench.device.Wait(bench.other, *event));
       return bench.FromDevice(bench.other);
     },
     "nothing puts the one behind the other"},
    {"a buffer filled before it was copied",
     [](DeviceBench& bench) {
       ExpectFine(bench.ToDevice(bench.work));
       return bench.device.HostWrites(bench.pinned.get() + 100, 1, "next batch");
     },
     "the host (next batch) writes byte 100 of pinned memory"},
    {"a host read behind the wrong stream",
     [](DeviceBench& bench) {
       ExpectFine(bench.FromDevice(bench.work));
       ExpectFine(bench.device.Block(*bench.Record(bench.other)));
       return bench.device.HostReads(bench.pinned_too.get() + 7, 3, "result");
     },
     "byte 7"},
    // A later read of the same actor does not hide the former one of another.
    {"a write behind one reader of two",
     [](DeviceBench& bench) {
       ExpectFine(bench.device.Copy(bench.on_device.get(), bench.pinned.get(), 8, bench.work));
       ExpectFine(bench.device.Copy(bench.on_device_too.get(), bench.pinned.get(), 8, bench.other));
       ExpectFine(bench.device.Block(*bench.Record(bench.work)));
       return bench.device.HostWrites(bench.pinned.get(), 8, "next batch");
     },
     "on stream 2"},
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
  ExpectFine(bench.ToDevice(bench.work));
  bench.pinned.reset();
  EXPECT_THAT(bench.device.TakeViolation(), HasSubstr("the host (freeing it) writes"));
}

TEST_P(FakeDeviceTest, FindsTwoThreadsThatDoNotTellEachOther) {
  for (const bool is_told : {false, true}) {
    DeviceBench bench(GetParam());
    ExpectFine(bench.device.HostReads(bench.pinned.get(), 8, "main"));
    std::optional<VectorClock> end;
    std::thread([&] {
      ExpectFine(bench.device.HostWrites(bench.pinned.get(), 8, "thread"));
      end = bench.device.HostClock();
    }).join();
    if (is_told) bench.device.HostLearns(*end);
    EXPECT_EQ(bench.device.HostReads(bench.pinned.get(), 8, "main").ok(), is_told);
    EXPECT_EQ(bench.device.TakeViolation().empty(), is_told);
  }
}

// Neighbours: devices of one process.

class FakeNeighbours : public DevicePaceTest {
 protected:
  FakeNeighbours() : options_(GetParam()), neighbour_(Neighbour()) {}

  FakeDeviceOptions Neighbour() {
    options_.process = std::make_shared<FakeProcess>();
    FakeDeviceOptions neighbour = options_;
    neighbour.index = 1;
    return neighbour;
  }

  FakeDeviceOptions options_;
  DeviceBench neighbour_;
};
INSTANTIATE_TEST_SUITE_P(Paces, FakeNeighbours, kEveryPace, NameOfPace);

TEST_P(FakeNeighbours, FindsACopyFromTheMemoryOfAnother) {
  DeviceBench bench(options_);
  uint8_t* const here = neighbour_.on_device.get();
  EXPECT_FALSE(
      neighbour_.device.Copy(here, bench.on_device.get(), kBenchBytes, neighbour_.work).ok());
  EXPECT_THAT(neighbour_.device.TakeViolation(), HasSubstr("of another device"));
  bench.Settle();
}

TEST_P(FakeNeighbours, FindsAKernelInTheMemoryOfAnother) {
  DeviceBench bench(options_);
  const ConvertSegment segment{bench.on_device.get(), neighbour_.on_device.get(), 8};
  EXPECT_FALSE(
      neighbour_.device
          .Convert({&segment, 1}, {.factor = {.multiplier = 2.0, .divisor = 1}}, neighbour_.work)
          .ok());
  EXPECT_THAT(neighbour_.device.TakeViolation(), HasSubstr("of another device"));
  bench.Settle();
}

TEST_P(FakeNeighbours, FindsAnEventOfAnotherThatIsPolled) {
  DeviceBench bench(options_);
  EXPECT_FALSE(neighbour_.device.IsOver(*bench.Record(bench.work)).ok());
  EXPECT_THAT(neighbour_.device.TakeViolation(), HasSubstr("an event of another device"));
  bench.Settle();
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
