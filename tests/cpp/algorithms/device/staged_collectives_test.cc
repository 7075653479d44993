// What staged collectives wait for and hold: chunks overlap, the host waits for nothing it does not
// need, memory stops growing, errors leave the streams in order; and each wait is needed.
#include "algorithms/device/staged_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "algorithms/device/staged_ranks.h"
#include "fakes/forgetful_device.h"

namespace mydist::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kChunkBytes = 16384;
constexpr int64_t kChunkFloats = kChunkBytes / 4;
const FakeDeviceOptions kLazyDevice{.pace = Pace::kLazy};

// Floats on a device, filled and read by operations on a stream: no host in between.
class DeviceFloats {
 public:
  DeviceFloats(const StagedRank& rank, int64_t count)
      : device_(rank.device),
        stream_(rank.stream),
        count_(count),
        memory_(ValueOf(rank.device->Allocate(Bytes()))) {}
  // Whoever frees memory waits for what uses it.
  ~DeviceFloats() {
    const auto end = device_->Record(stream_);
    if (end.ok()) static_cast<void>(device_->Block(**end));
  }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;

  float* data() const { return reinterpret_cast<float*>(memory_.get()); }
  int64_t Bytes() const { return count_ * int64_t{sizeof(float)}; }

  Status Fill(float value) {
    return device_->Enqueue(stream_, {.name = "fill",
                                      .writes = {{data(), Bytes()}},
                                      .work = [to = data(), count = count_, value] {
                                        for (int64_t i = 0; i < count; ++i) {
                                          to[i] = value + static_cast<float>(i % 1000);
                                        }
                                      }});
  }
  // Notes whether they are what Fill(value) gives, times `factor`.
  Status Check(float value, float factor) {
    return device_->Enqueue(
        stream_, {.name = "check",
                  .reads = {{data(), Bytes()}},
                  .work = [from = data(), count = count_, value, factor] {
                    for (int64_t i = 0; i < count; ++i) {
                      const float expected = factor * (value + static_cast<float>(i % 1000));
                      if (from[i] == expected) continue;
                      ADD_FAILURE() << "element " << i << " is " << from[i] << ", not " << expected;
                      return;
                    }
                  }});
  }

 private:
  FakeDevice* const device_;
  const StreamHandle stream_;
  const int64_t count_;
  const std::shared_ptr<uint8_t> memory_;
};

StagedCollectives StagedOn(const StagedRank& rank,
                           const std::shared_ptr<StagingPipeline>& pipeline) {
  return StagedCollectives(rank.rank, rank.Inner(), pipeline);
}

// Sums `count` floats on two devices; `look` sees the device when the call has returned.
void SumOnDevices(const FakeDeviceOptions& device, const StagingLimits& limits, int64_t count,
                  const std::function<void(const StagedRank&, const StagingPipeline&)>& look) {
  OnFakeDevices(2, device, [&](const StagedRank& rank) {
    const auto pipeline = OpenPipeline(rank.device, rank.stream, limits);
    StagedCollectives staged = StagedOn(rank, pipeline);
    DeviceFloats data(rank, count);
    ExpectOk(data.Fill(1));
    ExpectOk(staged.Allreduce(data.data(), count, {}));
    look(rank, *pipeline);
    ExpectOk(data.Check(1, 2));
  });
}

// Overlap.

TEST(StagedOverlap, ChunksAreInFlightTogether) {
  SumOnDevices(kLazyDevice, kSmallChunks, 10 * kChunkFloats, [](const StagedRank& rank, auto&) {
    const DeviceCounts counts = rank.device->counts();
    EXPECT_EQ(counts.copies, 20);
    EXPECT_GE(counts.most_copies_in_flight, 4);
    // One for each chunk that is to be sent, none for what comes back.
    EXPECT_EQ(counts.blocks, 10);
    EXPECT_FALSE(ValueOf(rank.device->IsOver(*ValueOf(rank.device->Record(rank.stream)))))
        << "the host goes on before the last copies";
  });
}

TEST(StagedOverlap, SmallTensorsAreOneChunk) {
  SumOnDevices({}, {}, 1000, [](const StagedRank& rank, auto&) {
    EXPECT_EQ(rank.device->counts().copies, 2);
    EXPECT_EQ(rank.device->counts().blocks, 1);
  });
}

// Parts that follow each other travel as one.
TEST(StagedOverlap, AGatherOfOneChunkIsOneCopyBack) {
  OnFakeDevices(3, {}, [](const StagedRank& rank) {
    const auto pipeline = OpenPipeline(rank.device, rank.stream, {});
    StagedCollectives staged = StagedOn(rank, pipeline);
    DeviceFloats own(rank, 100);
    DeviceFloats all(rank, 300);
    ExpectOk(own.Fill(3));
    const std::vector<int64_t> bytes(3, own.Bytes());
    ExpectOk(staged.Allgather(own.data(), all.data(), bytes));
    EXPECT_EQ(rank.device->counts().copies, 2);
  });
}

// What the host does not wait for.

TEST(StagedBlocks, WhoOnlyReceivesDoesNotWait) {
  OnFakeDevices(2, kLazyDevice, [](const StagedRank& rank) {
    const auto pipeline = OpenPipeline(rank.device, rank.stream, kSmallChunks);
    StagedCollectives staged = StagedOn(rank, pipeline);
    DeviceFloats data(rank, 4 * kChunkFloats);
    if (rank.rank == 0) {
      ExpectOk(data.Fill(5));
      ExpectOk(staged.Broadcast(data.data(), data.Bytes(), 0));
      ExpectOk(staged.Send(data.data(), data.Bytes(), 1));
      EXPECT_EQ(rank.device->counts().blocks, 8);
      return;
    }
    ExpectOk(staged.Broadcast(data.data(), data.Bytes(), 0));
    EXPECT_EQ(rank.device->counts().blocks, 0);
    ExpectOk(data.Check(5, 1));
    // Once, until the host may use its memory again.
    ExpectOk(staged.Receive(data.data(), data.Bytes(), 0));
    EXPECT_EQ(rank.device->counts().blocks, 1);
    ExpectOk(data.Check(5, 1));
  });
}

TEST(StagedBlocks, NothingIsDoneForNothing) {
  OnFakeDevices(3, {}, [](const StagedRank& rank) {
    const auto pipeline = OpenPipeline(rank.device, rank.stream, {});
    StagedCollectives staged = StagedOn(rank, pipeline);
    const std::vector<int64_t> none(3, 0);
    ExpectOk(staged.Allreduce(nullptr, 0, {}));
    ExpectOk(staged.Allgather(nullptr, nullptr, none));
    ExpectOk(staged.Broadcast(nullptr, 0, 1));
    ExpectOk(staged.Reducescatter(nullptr, nullptr, none, {}));
    ExpectOk(staged.Alltoall(nullptr, none, nullptr, none));
    ExpectOk(staged.Scatter(nullptr, none, nullptr, 2));
    ExpectOk(staged.Barrier());
    const DeviceCounts counts = rank.device->counts();
    EXPECT_EQ(counts.blocks, 0);
    EXPECT_EQ(counts.copies, 0);
    EXPECT_EQ(counts.pinned_allocations, 0);
  });
}

// Memory.

class StagedPaces : public ::testing::TestWithParam<FakeDeviceOptions> {};
INSTANTIATE_TEST_SUITE_P(Paces, StagedPaces, kEveryPace, NameOfPace);

void CallEverything(const StagedRank& rank, StagedCollectives& staged, DeviceFloats& data,
                    DeviceFloats& other) {
  const int64_t part = data.Bytes() / 4 / rank.size;
  const std::vector<int64_t> counts(static_cast<size_t>(rank.size), part);
  std::vector<int64_t> bytes = counts;
  for (int64_t& count : bytes) count *= 4;
  ExpectOk(data.Fill(1));
  ExpectOk(staged.Allreduce(data.data(), part * rank.size, {}));
  ExpectOk(staged.Reduce(data.data(), other.data(), part * rank.size, {}, 0));
  ExpectOk(staged.AdasumAllreduce(data.data(), counts, {.op = ReduceOp::kAdasum}));
  ExpectOk(staged.Allgather(data.data(), other.data(), bytes));
  ExpectOk(staged.Gather(data.data(), other.data(), bytes, 1));
  ExpectOk(staged.Scatter(data.data(), bytes, other.data(), 0));
  ExpectOk(staged.Broadcast(data.data(), part * 4, 1));
  ExpectOk(staged.Alltoall(data.data(), bytes, other.data(), bytes));
  ExpectOk(staged.Reducescatter(data.data(), other.data(), counts, {}));
  if (rank.rank == 0) ExpectOk(staged.Send(data.data(), part, 1));
  if (rank.rank == 1) ExpectOk(staged.Receive(data.data(), part, 0));
}

TEST_P(StagedPaces, NothingIsAllocatedInTheSteadyState) {
  OnFakeDevices(2, GetParam(), [](const StagedRank& rank) {
    const auto pipeline = OpenPipeline(rank.device, rank.stream, kSmallChunks);
    StagedCollectives staged = StagedOn(rank, pipeline);
    DeviceFloats data(rank, 9 * kChunkFloats);
    DeviceFloats other(rank, 9 * kChunkFloats);
    CallEverything(rank, staged, data, other);
    const DeviceCounts warm = rank.device->counts();
    for (int step = 0; step < 5; ++step) CallEverything(rank, staged, data, other);
    const DeviceCounts after = rank.device->counts();
    EXPECT_GT(warm.pinned_allocations, 0);
    EXPECT_EQ(after.pinned_allocations, warm.pinned_allocations);
    EXPECT_EQ(after.allocations, warm.allocations);
    EXPECT_EQ(after.streams, warm.streams);
  });
}

TEST_P(StagedPaces, MemoryIsBoundedByTheChunksInFlight) {
  SumOnDevices(GetParam(), kSmallChunks, 50 * kChunkFloats, [](auto&, const auto& pipeline) {
    EXPECT_LE(pipeline.capacity_bytes(), 4 * kChunkBytes + 4096);
  });
}

// The memory grows while copies out of it may still be under way.
TEST_P(StagedPaces, CallsFollowEachOtherAtOnce) {
  OnFakeDevices(2, GetParam(), [](const StagedRank& rank) {
    const auto pipeline = OpenPipeline(rank.device, rank.stream, kSmallChunks);
    StagedCollectives staged = StagedOn(rank, pipeline);
    StagedCollectives shares = StagedOn(rank, pipeline);
    float factor = 1;
    DeviceFloats large(rank, 7 * kChunkFloats);
    ExpectOk(large.Fill(1));
    for (const int64_t count : {10, 5000, 3, 7 * 4096, 100}) {
      DeviceFloats small(rank, count);
      ExpectOk(small.Fill(3));
      ExpectOk(staged.Allreduce(small.data(), count, {}));
      ExpectOk(small.Check(3, 2));
      ExpectOk(shares.Allreduce(large.data(), 7 * kChunkFloats, {}));
      factor *= 2;
    }
    ExpectOk(large.Check(1, factor));
  });
}

TEST(StagedSupport, IsThatOfTheInnerOnItsDevice) {
  OnFakeDevices(1, {.index = 3}, [](const StagedRank& rank) {
    const auto pipeline = OpenPipeline(rank.device, rank.stream, {});
    const StagedCollectives staged = StagedOn(rank, pipeline);
    BatchTraits traits{OpKind::kAllreduce, DataType::kFloat32, ReduceOp::kSum, 3, 4};
    EXPECT_TRUE(staged.Supports(traits));
    traits.device = -1;
    EXPECT_FALSE(staged.Supports(traits));
    traits.device = 2;
    EXPECT_FALSE(staged.Supports(traits));
    traits = {OpKind::kAllreduce, DataType::kComplex64, ReduceOp::kMax, 3, 8};
    EXPECT_FALSE(staged.Supports(traits));
  });
}

// Errors.

// Does `before` first, and only goes on where that is fine.
class FailingCollectives final : public Collectives {
 public:
  FailingCollectives(std::unique_ptr<Collectives> inner, std::function<Status(int call)> before)
      : inner_(std::move(inner)), before_(std::move(before)) {}

  Status Allreduce(void* data, int64_t count, const Reduction& reduction) override {
    MYDIST_RETURN_IF_ERROR(before_(call_count_++));
    return inner_->Allreduce(data, count, reduction);
  }
  bool Supports(const BatchTraits&) const override { return true; }

 private:
  const std::unique_ptr<Collectives> inner_;
  const std::function<Status(int call)> before_;
  int call_count_ = 0;
};

// The stream is behind all copies: the memory may be used, and freed, behind the stream.
TEST_P(StagedPaces, AnErrorLeavesTheStreamInOrder) {
  for (int failing = 0; failing < 10; failing += 3) {
    OnFakeDevices(1, GetParam(), [&](const StagedRank& rank) {
      const auto pipeline = OpenPipeline(rank.device, rank.stream, kSmallChunks);
      const auto fail = [&](int call) {
        return call == failing ? Status::PeerLost("rank 1 has gone") : Status::Ok();
      };
      StagedCollectives staged(0, std::make_unique<FailingCollectives>(rank.Inner(), fail),
                               pipeline);
      DeviceFloats data(rank, 10 * kChunkFloats);
      ExpectOk(data.Fill(1));
      const Status status = staged.Allreduce(data.data(), 10 * kChunkFloats, {});
      EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.ToString();
      ExpectOk(data.Fill(2));
    });
  }
}

TEST_P(StagedPaces, ALostDeviceIsAnErrorAndNoHang) {
  OnFakeDevices(1, GetParam(), [&](const StagedRank& rank) {
    const auto pipeline = OpenPipeline(rank.device, rank.stream, kSmallChunks);
    const auto lose = [&](int call) {
      if (call == 2) rank.device->Lose("it fell off the bus");
      return Status::Ok();
    };
    StagedCollectives staged(0, std::make_unique<FailingCollectives>(rank.Inner(), lose), pipeline);
    DeviceFloats data(rank, 10 * kChunkFloats);
    ExpectOk(data.Fill(1));
    const Status status = staged.Allreduce(data.data(), 10 * kChunkFloats, {});
    ExpectError(status, StatusCode::kInternal, {"it fell off the bus"});
  });
}

// Every wait is needed.

// Fetches, delivers, and both, over memory that was used before and is used again.
Status UseTheStream(const StagedRank& rank, StagedCollectives& staged, DeviceFloats& data,
                    DeviceFloats& other) {
  const int64_t count = data.Bytes() / 4;
  MYDIST_RETURN_IF_ERROR(other.Fill(2));
  MYDIST_RETURN_IF_ERROR(data.Fill(1));
  MYDIST_RETURN_IF_ERROR(staged.Allreduce(data.data(), count, {}));
  MYDIST_RETURN_IF_ERROR(data.Check(1, 2));
  MYDIST_RETURN_IF_ERROR(other.Check(2, 1));
  if (rank.rank == 0) {
    MYDIST_RETURN_IF_ERROR(staged.Receive(other.data(), other.Bytes(), 1));
    MYDIST_RETURN_IF_ERROR(other.Check(1, 2));
  } else {
    MYDIST_RETURN_IF_ERROR(staged.Send(data.data(), data.Bytes(), 0));
  }
  MYDIST_RETURN_IF_ERROR(other.Fill(3));
  MYDIST_RETURN_IF_ERROR(staged.Allreduce(other.data(), count, {}));
  return other.Check(3, 2);
}

struct Forgetting {
  std::string violation;  // Of rank 0, which forgets.
  int64_t wait_count = 0;
  int64_t block_count = 0;
};

// In a lazy device nothing that was not ordered would go right by itself either.
Forgetting RunForgetting(const Forgotten& forgotten) {
  Forgetting result;
  OnFakeDevices(2, kLazyDevice, [&](const StagedRank& rank) {
    ForgetfulDevice forgetful(rank.device, rank.rank == 0 ? forgotten : Forgotten{});
    {
      DeviceFloats data(rank, 6 * kChunkFloats);
      DeviceFloats other(rank, 6 * kChunkFloats);
      const auto pipeline = OpenPipeline(&forgetful, rank.stream, kSmallChunks);
      StagedCollectives staged = StagedOn(rank, pipeline);
      // Who is left alone hears of it.
      if (!UseTheStream(rank, staged, data, other).ok()) rank.connection->control.reset();
    }
    if (rank.rank == 0) {
      result = {rank.device->TakeViolation(), forgetful.wait_count(), forgetful.block_count()};
    }
  });
  return result;
}

TEST(StagedOrder, NoWaitAndNoBlockCanBeLeftOut) {
  const Forgetting complete = RunForgetting({});
  EXPECT_EQ(complete.violation, "");
  EXPECT_GT(complete.wait_count, 6);
  EXPECT_GT(complete.block_count, 12);
  for (int64_t wait = 0; wait < complete.wait_count; ++wait) {
    EXPECT_THAT(RunForgetting({.wait = wait}).violation, HasSubstr("nothing puts the one behind"))
        << "wait " << wait << " of " << complete.wait_count << " was dropped";
  }
  for (int64_t block = 0; block < complete.block_count; ++block) {
    EXPECT_THAT(RunForgetting({.block = block}).violation, HasSubstr("nothing puts the one behind"))
        << "block " << block << " of " << complete.block_count << " was dropped";
  }
}

}  // namespace
}  // namespace mydist::testing
