// DeviceBench: a fake device and what a small program on it needs; DevicePaceTest runs a test at
// every pace.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/deep.h"
#include "conformance/sanitizers.h"
#include "conformance/status_checks.h"
#include "fakes/fake_device.h"

namespace mydist::testing {

inline constexpr int64_t kBenchBytes = 4096;

template <typename T>
T ValueOf(Result<T> result) {
  ExpectOk(result.status());
  return std::move(result).value();
}

struct DeviceBench {
  explicit DeviceBench(const FakeDeviceOptions& options = {}) : device(options) {
    work = ValueOf(device.CreateStream());
    other = ValueOf(device.CreateStream());
    on_device = ValueOf(device.Allocate(kBenchBytes));
    on_device_too = ValueOf(device.Allocate(kBenchBytes));
    pinned = ValueOf(device.AllocatePinned(kBenchBytes));
    pinned_too = ValueOf(device.AllocatePinned(kBenchBytes));
  }

  EventPointer Record(StreamHandle stream) { return ValueOf(device.Record(stream)); }
  Status ToDevice(StreamHandle stream) {
    return device.Copy(on_device.get(), pinned.get(), kBenchBytes, stream);
  }
  Status FromDevice(StreamHandle stream) {
    return device.Copy(pinned_too.get(), on_device.get(), kBenchBytes, stream);
  }
  void Fill(uint8_t value) {
    ExpectOk(device.HostWrites(pinned.get(), kBenchBytes, "fill"));
    std::memset(pinned.get(), value, kBenchBytes);
  }

  FakeDevice device;
  StreamHandle work;
  StreamHandle other;
  std::shared_ptr<uint8_t> on_device;
  std::shared_ptr<uint8_t> on_device_too;
  std::shared_ptr<uint8_t> pinned;
  std::shared_ptr<uint8_t> pinned_too;
};

// At every pace, and with several seeds.
class DevicePaceTest : public ::testing::TestWithParam<FakeDeviceOptions> {
 protected:
  // `mistake` is found, and said with these words.
  template <typename Words>
  void ExpectViolation(const std::function<Status(DeviceBench&)>& mistake, const Words& words) {
    DeviceBench bench(GetParam());
    bench.Fill(1);
    const Status status = mistake(bench);
    EXPECT_EQ(status.code(), StatusCode::kInternal) << status.ToString();
    EXPECT_THAT(bench.device.TakeViolation(), words);
    EXPECT_FALSE(bench.device.Record(bench.work).ok()) << "the device is not lost";
  }
};
// Lazily, and at random times; few under a sanitizer, which sees races whatever the times are.
inline std::vector<FakeDeviceOptions> EveryPace() {
  const std::vector<FakeDeviceOptions> two = {{.pace = Pace::kLazy}, {.seed = 1}};
  std::vector<FakeDeviceOptions> four = two;
  four.insert(four.end(), {{.seed = 2}, {.seed = 3}});
  return InDeep(kIsSanitized ? two : four, two, {{.seed = 1}});
}
inline const auto kEveryPace = ::testing::ValuesIn(EveryPace());

inline std::string NameOfPace(const ::testing::TestParamInfo<FakeDeviceOptions>& instance) {
  if (instance.param.pace == Pace::kLazy) return "Lazy";
  return "Seed" + std::to_string(instance.param.seed);
}

}  // namespace mydist::testing
