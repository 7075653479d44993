// The fake device: correct programs pass and compute the right thing, and every kind of mistake is
// found, whatever the streams happen to do.
#include "fakes/fake_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "fakes/device_bench.h"

namespace mydist::testing {
namespace {

using ::testing::AllOf;
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

TEST_P(FakeDeviceTest, PartsThatAreApartNeedNoOrder) {
  DeviceBench bench(GetParam());
  uint8_t* half = bench.on_device.get() + kBenchBytes / 2;
  ExpectFine(
      bench.device.Copy(bench.on_device.get(), bench.pinned.get(), kBenchBytes / 2, bench.work));
  ExpectFine(bench.device.Copy(half, bench.pinned.get(), kBenchBytes / 2, bench.other));
  // Many may read what nobody writes.
  ExpectFine(bench.device.HostReads(bench.pinned.get(), kBenchBytes, "look"));
  bench.Settle();
}

TEST_P(FakeDeviceTest, OrderIsPassedOn) {
  DeviceBench bench(GetParam());
  const StreamHandle third = ValueOf(bench.device.CreateStream());
  bench.Fill(3);
  ExpectFine(bench.ToDevice(bench.work));
  ExpectFine(bench.device.Wait(third, *bench.Record(bench.work)));
  ExpectFine(bench.device.Wait(bench.other, *bench.Record(third)));
  ExpectFine(bench.FromDevice(bench.other));
  // Who blocks for the last knows of the first.
  ExpectFine(bench.device.Block(*bench.Record(bench.other)));
  bench.Fill(4);
}

TEST_P(FakeDeviceTest, AnEventIsOverOnceItsStreamHasPassed) {
  DeviceBench bench(GetParam());
  std::atomic<bool> may_end = false;
  std::atomic<bool> has_ended = false;
  ExpectFine(bench.device.Enqueue(bench.work, {.name = "a long one", .work = [&] {
                                                 while (!may_end) std::this_thread::yield();
                                                 has_ended = true;
                                               }}));
  const EventPointer event = bench.Record(bench.work);
  EXPECT_FALSE(ValueOf(bench.device.IsOver(*event)));
  may_end = true;
  while (!ValueOf(bench.device.IsOver(*event))) std::this_thread::yield();
  EXPECT_TRUE(has_ended);
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

// Mistakes in the order.

TEST_P(FakeDeviceTest, FindsAReadBeforeItsEvent) {
  ExpectViolation(
      [](DeviceBench& bench) {
        ExpectFine(bench.ToDevice(bench.work));
        const EventPointer event = bench.Record(bench.work);
        const Status early = bench.FromDevice(bench.other);
        return early.ok() ? bench.device.Wait(bench.other, *event) : early;
      },
      AllOf(HasSubstr("operation 2, on stream 2"), HasSubstr("operation 1, on stream 1"),
            HasSubstr("reads byte 0 of device memory"), HasSubstr("writes")));
}

TEST_P(FakeDeviceTest, FindsAWaitForAnEventBeforeTheWork) {
  ExpectViolation(
      [](DeviceBench& bench) {
        const EventPointer event = bench.Record(bench.work);
        ExpectFine(bench.ToDevice(bench.work));
        ExpectFine(bench.device.Wait(bench.other, *event));
        return bench.FromDevice(bench.other);
      },
      HasSubstr("nothing puts the one behind the other"));
}

TEST_P(FakeDeviceTest, FindsABufferFilledAgainBeforeItWasCopied) {
  ExpectViolation(
      [](DeviceBench& bench) {
        ExpectFine(bench.ToDevice(bench.work));
        return bench.device.HostWrites(bench.pinned.get() + 100, 1, "next batch");
      },
      AllOf(HasSubstr("the host (next batch) writes byte 100 of pinned memory"),
            HasSubstr("a copy of 4096 bytes (operation 1, on stream 1) reads")));
}

TEST_P(FakeDeviceTest, FindsAHostReadWithoutBlock) {
  ExpectViolation(
      [](DeviceBench& bench) {
        ExpectFine(bench.FromDevice(bench.work));
        return bench.device.HostReads(bench.pinned_too.get(), kBenchBytes, "result");
      },
      HasSubstr("the host (result) reads"));
}

TEST_P(FakeDeviceTest, FindsAHostReadBehindTheWrongStream) {
  ExpectViolation(
      [](DeviceBench& bench) {
        ExpectFine(bench.FromDevice(bench.work));
        ExpectFine(bench.device.Block(*bench.Record(bench.other)));
        return bench.device.HostReads(bench.pinned_too.get() + 7, 3, "result");
      },
      HasSubstr("byte 7"));
}

// A later read of the same actor does not hide the former one of another.
TEST_P(FakeDeviceTest, FindsAWriteBehindOneReaderOfTwo) {
  ExpectViolation(
      [](DeviceBench& bench) {
        ExpectFine(bench.device.Copy(bench.on_device.get(), bench.pinned.get(), 8, bench.work));
        ExpectFine(
            bench.device.Copy(bench.on_device_too.get(), bench.pinned.get(), 8, bench.other));
        ExpectFine(bench.device.Block(*bench.Record(bench.work)));
        return bench.device.HostWrites(bench.pinned.get(), 8, "next batch");
      },
      HasSubstr("on stream 2"));
}

TEST_P(FakeDeviceTest, FindsMemoryFreedInUse) {
  DeviceBench bench(GetParam());
  ExpectFine(bench.ToDevice(bench.work));
  bench.pinned.reset();
  EXPECT_THAT(bench.device.TakeViolation(),
              AllOf(HasSubstr("the host (freeing it) writes"), HasSubstr("operation 1")));
}

TEST_P(FakeDeviceTest, FindsTwoThreadsUsingOneBuffer) {
  DeviceBench bench(GetParam());
  ExpectFine(bench.device.HostReads(bench.pinned.get(), 8, "main"));
  std::thread([&] { ExpectFine(bench.device.HostWrites(bench.pinned.get(), 8, "thread")); }).join();
  // As far as the device has been told, the thread is still at it.
  EXPECT_FALSE(bench.device.HostReads(bench.pinned.get(), 8, "main").ok());
  EXPECT_THAT(bench.device.TakeViolation(), HasSubstr("the host (thread) writes"));
}

TEST_P(FakeDeviceTest, ThreadsThatTellEachOtherAreInOrder) {
  DeviceBench bench(GetParam());
  std::optional<VectorClock> end;
  std::thread([&] {
    ExpectFine(bench.device.HostWrites(bench.pinned.get(), 8, "thread"));
    end = bench.device.HostClock();
  }).join();
  bench.device.HostLearns(*end);
  ExpectFine(bench.device.HostReads(bench.pinned.get(), 8, "main"));
}

TEST_P(FakeDeviceTest, AllThreadsAreInOrderWhereTheProgramSeesToIt) {
  FakeDeviceOptions options = GetParam();
  options.host_order = HostOrder::kOneForAll;
  DeviceBench bench(options);
  ExpectFine(bench.device.HostReads(bench.pinned.get(), 8, "main"));
  std::thread([&] { ExpectFine(bench.device.HostWrites(bench.pinned.get(), 8, "thread")); }).join();
  ExpectFine(bench.device.HostReads(bench.pinned.get(), 8, "main"));
}

// Mistakes in the arguments.

TEST_P(FakeDeviceTest, FindsFreedMemory) {
  ExpectViolation(
      [](DeviceBench& bench) {
        const uint8_t* freed = bench.on_device.get();
        bench.on_device.reset();
        return bench.device.Copy(bench.pinned.get(), freed + 8, 8, bench.work);
      },
      HasSubstr("which is freed"));
}

TEST_P(FakeDeviceTest, FindsForeignMemory) {
  std::vector<uint8_t> foreign(64);
  ExpectViolation(
      [&](DeviceBench& bench) {
        return bench.device.Copy(bench.on_device.get(), foreign.data(), 64, bench.work);
      },
      HasSubstr("no memory of the device"));
}

TEST_P(FakeDeviceTest, FindsAnOverrun) {
  ExpectViolation(
      [](DeviceBench& bench) {
        return bench.device.Copy(bench.on_device.get() + 1, bench.pinned.get(), kBenchBytes,
                                 bench.work);
      },
      AllOf(HasSubstr("writes 4096 bytes"), HasSubstr("beyond the end")));
}

TEST_P(FakeDeviceTest, FindsACopyOntoItself) {
  ExpectViolation(
      [](DeviceBench& bench) {
        return bench.device.Copy(bench.on_device.get() + 8, bench.on_device.get(), 16, bench.work);
      },
      HasSubstr("writes what it reads"));
}

TEST_P(FakeDeviceTest, FindsACopyBetweenHostMemory) {
  ExpectViolation(
      [](DeviceBench& bench) {
        return bench.device.Copy(bench.pinned_too.get(), bench.pinned.get(), 16, bench.work);
      },
      HasSubstr("from pinned memory to pinned memory"));
}

TEST_P(FakeDeviceTest, FindsTheHostInDeviceMemory) {
  ExpectViolation(
      [](DeviceBench& bench) { return bench.device.HostReads(bench.on_device.get(), 1, "peek"); },
      HasSubstr("the host (peek) touches device memory"));
}

TEST_P(FakeDeviceTest, FindsAStreamAndAnEventOfAnotherDevice) {
  DeviceBench stranger(GetParam());
  ExpectViolation([&](DeviceBench& bench) { return bench.ToDevice(stranger.work); },
                  HasSubstr("a stream of another device"));
  const EventPointer event = stranger.Record(stranger.work);
  ExpectViolation([&](DeviceBench& bench) { return bench.device.Wait(bench.work, *event); },
                  HasSubstr("an event of another device"));
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

// What tests can ask.

TEST_P(FakeDeviceTest, Counts) {
  DeviceBench bench(GetParam());
  for (int i = 0; i < 3; ++i) ExpectFine(bench.ToDevice(bench.work));
  ExpectFine(bench.device.Copy(nullptr, nullptr, 0, bench.work));
  const EventPointer event = bench.Record(bench.work);
  ExpectFine(bench.device.Wait(bench.other, *event));
  ExpectFine(bench.device.Block(*event));
  ExpectFine(bench.FromDevice(bench.work));
  ExpectFine(bench.device.Enqueue(bench.work, {.name = "nothing", .work = [] {}}));
  EXPECT_TRUE(bench.device.Convert({}, {}, bench.work).ok());
  const DeviceCounts counts = bench.device.counts();
  EXPECT_EQ(counts.streams, 2);
  EXPECT_EQ(counts.allocations, 2);
  EXPECT_EQ(counts.pinned_allocations, 2);
  EXPECT_EQ(counts.copies, 4);
  EXPECT_EQ(counts.most_copies_in_flight, 3);
  EXPECT_EQ(counts.most_fetches_in_flight, 1);
  EXPECT_EQ(counts.records, 1);
  EXPECT_EQ(counts.waits, 1);
  EXPECT_EQ(counts.blocks, 1);
  EXPECT_EQ(counts.operations, 1);
  EXPECT_EQ(counts.launches, 0);
  bench.Settle();
}

TEST_P(FakeDeviceTest, NothingWorksOnALostDevice) {
  DeviceBench bench(GetParam());
  ExpectFine(bench.ToDevice(bench.work));
  const EventPointer event = bench.Record(bench.work);
  bench.device.Lose("it fell off the bus");
  EXPECT_THAT(bench.FromDevice(bench.work).message(), HasSubstr("it fell off the bus"));
  EXPECT_EQ(bench.device.Block(*event).code(), StatusCode::kInternal);
  EXPECT_FALSE(bench.device.Allocate(8).ok());
  EXPECT_EQ(bench.device.TakeViolation(), "");
}

TEST(FakeDeviceMemory, NothingIsNull) {
  FakeDevice device;
  EXPECT_EQ(ValueOf(device.Allocate(0)), nullptr);
  EXPECT_EQ(ValueOf(device.AllocatePinned(0)), nullptr);
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

TEST(FakeDeviceMemory, AViolationThatNobodyTakesFailsTheTest) {
  EXPECT_NONFATAL_FAILURE(
      {
        FakeDevice device;
        EXPECT_FALSE(device.HostReads(&device, 1, "peek").ok());
      },
      "the host (peek) reads");
}

}  // namespace
}  // namespace mydist::testing
