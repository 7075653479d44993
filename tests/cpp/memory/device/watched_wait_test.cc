// The host waits for a device, or is told that there is no sense in it any more.
#include "memory/device/device_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "algorithms/device/staging_pipeline.h"
#include "fakes/device_bench.h"

namespace mydist::testing {
namespace {

Status Why() { return Status::PeerLost("rank 3 was killed"); }

// Work on a stream that is not over before it is let go.
class Held {
 public:
  Held(FakeDevice& device, StreamHandle stream) : device_(device), stream_(stream) {
    ExpectOk(device.Enqueue(stream, {.name = "a rank that never comes", .work = [this] {
                                       while (!is_let_go_) std::this_thread::yield();
                                     }}));
  }
  ~Held() {
    is_let_go_ = true;
    ExpectOk(device_.Block(*ValueOf(device_.Record(stream_))));
  }

 private:
  FakeDevice& device_;
  const StreamHandle stream_;
  std::atomic<bool> is_let_go_ = false;
};

class WatchedWait : public DevicePaceTest {};
INSTANTIATE_TEST_SUITE_P(Paces, WatchedWait, kEveryPace, NameOfPace);

TEST_P(WatchedWait, EndsWithTheEvent) {
  DeviceBench bench(GetParam());
  for (const WaitWatch& watch : {WaitWatch(), WaitWatch([] { return Status::Ok(); })}) {
    bench.Fill(5);
    ExpectOk(bench.ToDevice(bench.work));
    ExpectOk(bench.FromDevice(bench.work));
    ExpectOk(WaitWatched(bench.device, *bench.Record(bench.work), watch));
    ExpectOk(bench.device.HostReads(bench.pinned_too.get(), kBenchBytes, "the result"));
    EXPECT_EQ(bench.pinned_too.get()[kBenchBytes - 1], 5);
  }
}

TEST_P(WatchedWait, EndsWithWhatTheWatchSays) {
  DeviceBench bench(GetParam());
  const Held held(bench.device, bench.work);
  int asked = 0;
  const Status status = WaitWatched(bench.device, *bench.Record(bench.work),
                                    [&] { return ++asked < 3 ? Status::Ok() : Why(); });
  EXPECT_EQ(status.ToString(), Why().ToString());
  EXPECT_EQ(asked, 3);
}

TEST_P(WatchedWait, PassesOnThatTheDeviceIsLost) {
  DeviceBench bench(GetParam());
  const EventPointer event = bench.Record(bench.work);
  bench.device.Lose("it fell off the bus");
  EXPECT_EQ(WaitWatched(bench.device, *event, [] { return Status::Ok(); }).code(),
            StatusCode::kInternal);
}

// A tensor to be staged is never written, as a peer on the device is lost.
TEST_P(WatchedWait, EndsAStagingPipeline) {
  DeviceBench bench(GetParam());
  const auto pipeline =
      ValueOf(StagingPipeline::Open({&bench.device, bench.work, [] { return Why(); }}));
  const Held held(bench.device, bench.work);
  const Status status = pipeline->Run(
      {.chunk_count = 2,
       .chunk_bytes = 100,
       .inputs = [&](int, ChunkInputs& inputs) { inputs.Add(bench.on_device.get(), 0, 100); },
       .exchange =
           [](int, uint8_t*) {
             ADD_FAILURE() << "what has not come is sent";
             return Status::Ok();
           },
       .outputs = [](int, ChunkOutputs&) {}});
  EXPECT_EQ(status.ToString(), Why().ToString());
}

}  // namespace
}  // namespace mydist::testing
