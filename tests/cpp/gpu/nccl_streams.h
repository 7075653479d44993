// NcclStreams: puts what a FakeNccl does on the stream of the fake device that has this stream.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "fakes/device_bench.h"
#include "fakes/fake_nccl.h"

namespace mydist::testing {

class NcclStreams {
 public:
  void Add(StreamHandle stream, FakeDevice* device) {
    const std::lock_guard lock(mutex_);
    devices_[stream.native] = device;
  }

  void Launch(nccl::Stream stream, FakeNcclWork work) {
    Operation operation{.name = "NCCL", .work = std::move(work.run)};
    for (const FakeNcclWork::Range& range : work.ranges) {
      const MemoryRange memory{range.begin, static_cast<int64_t>(range.bytes)};
      (range.writes ? operation.writes : operation.reads).push_back(memory);
    }
    FakeDevice* device = nullptr;
    {
      const std::lock_guard lock(mutex_);
      device = devices_.at(stream);
    }
    ExpectOk(device->Enqueue({stream}, std::move(operation)));
  }

 private:
  std::mutex mutex_;
  std::map<void*, FakeDevice*> devices_;
};

}  // namespace mydist::testing
