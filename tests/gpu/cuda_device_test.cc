// CudaDevice on a real GPU; skipped, with the reason, where there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "algorithms/device/device_plugin.h"

extern "C" mydist::DevicePlugin* mydist_device_plugin_v1();

namespace mydist {
namespace {

using ::testing::HasSubstr;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<int> count = plugin_->DeviceCount();
    if (!count.ok()) GTEST_SKIP() << count.status().message();
    device_count_ = *count;
    Result<std::shared_ptr<Device>> device = plugin_->OpenDevice(0);
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    device_ = *std::move(device);
  }

  // `count` numbers on the device, by way of pinned memory, on `stream`.
  void Upload(const std::shared_ptr<uint8_t>& pinned, const std::shared_ptr<uint8_t>& target,
              int64_t bytes, StreamHandle stream) {
    const Status status = device_->Copy(target.get(), pinned.get(), bytes, stream);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  void Finish(StreamHandle stream) {
    const Result<EventPointer> event = device_->Record(stream);
    ASSERT_TRUE(event.ok()) << event.status().ToString();
    const Status status = device_->Block(**event);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  DevicePlugin* const plugin_ = mydist_device_plugin_v1();
  int device_count_ = 0;
  std::shared_ptr<Device> device_;
};

TEST_F(CudaDeviceTest, AnIndexOutOfRangeIsRefused) {
  for (const int index : {-1, device_count_}) {
    const Status status = plugin_->OpenDevice(index).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("got GPU " + std::to_string(index)));
  }
}

TEST_F(CudaDeviceTest, IsOneObjectForAllWhoHaveIt) {
  EXPECT_EQ(plugin_->OpenDevice(0).value(), device_);
}

TEST_F(CudaDeviceTest, HasAnIdentityOfItsOwn) {
  EXPECT_NE(device_->identity(), "");
  for (int index = 1; index < device_count_; ++index) {
    EXPECT_NE(plugin_->OpenDevice(index).value()->identity(), device_->identity());
  }
}

TEST_F(CudaDeviceTest, BytesTravelThereAndBack) {
  constexpr int64_t kBytes = (3 << 20) + 7;
  const auto pinned = device_->AllocatePinned(kBytes).value();
  const auto back = device_->AllocatePinned(kBytes).value();
  const auto data = device_->Allocate(kBytes).value();
  for (int64_t i = 0; i < kBytes; ++i) pinned.get()[i] = static_cast<uint8_t>(i * 37 + i / 251);
  std::memset(back.get(), 0xEE, kBytes);
  const StreamHandle stream = device_->CreateStream().value();
  Upload(pinned, data, kBytes, stream);
  ASSERT_TRUE(device_->Copy(back.get(), data.get(), kBytes, stream).ok());
  Finish(stream);
  EXPECT_EQ(std::memcmp(pinned.get(), back.get(), kBytes), 0);
}

TEST_F(CudaDeviceTest, AStreamWaitsForAnotherOnesEvent) {
  constexpr int64_t kBytes = 64 << 20;
  const auto first = device_->AllocatePinned(kBytes).value();
  const auto back = device_->AllocatePinned(kBytes).value();
  const auto data = device_->Allocate(kBytes).value();
  const StreamHandle up = device_->CreateStream().value();
  const StreamHandle down = device_->CreateStream().value();
  for (int round = 1; round <= 5; ++round) {
    std::memset(first.get(), round, kBytes);
    Upload(first, data, kBytes, up);
    const EventPointer uploaded = device_->Record(up).value();
    ASSERT_TRUE(device_->Wait(down, *uploaded).ok());
    ASSERT_TRUE(device_->Copy(back.get(), data.get(), kBytes, down).ok());
    Finish(down);
    EXPECT_TRUE(device_->IsOver(*uploaded).value());
    EXPECT_EQ(back.get()[0], round);
    EXPECT_EQ(back.get()[kBytes - 1], round);
  }
}

TEST_F(CudaDeviceTest, SegmentsAreScaledAndCast) {
  constexpr int kCount = 1000;
  const auto pinned = device_->AllocatePinned(kCount * 4).value();
  const auto data = device_->Allocate(kCount * 4).value();
  auto* numbers = reinterpret_cast<float*>(pinned.get());
  std::iota(numbers, numbers + kCount, 1.0F);
  const StreamHandle stream = device_->CreateStream().value();
  Upload(pinned, data, kCount * 4, stream);
  auto* on_device = reinterpret_cast<float*>(data.get());
  const ConvertSegment segments[] = {{on_device, on_device, 400},
                                     {on_device + 401, on_device + 401, kCount - 401}};
  const Conversion halve{DataType::kFloat32, DataType::kFloat32, {0.5, 1}};
  const Status status = device_->Convert(segments, halve, stream);
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_TRUE(device_->Copy(pinned.get(), data.get(), kCount * 4, stream).ok());
  Finish(stream);
  for (int i = 0; i < kCount; ++i) {
    EXPECT_EQ(numbers[i], static_cast<float>(i + 1) * (i == 400 ? 1.0F : 0.5F)) << i;
  }
}

TEST_F(CudaDeviceTest, MemoryThatIsLetGoIsUsedAgain) {
  uint8_t* const first = device_->Allocate(1 << 20).value().get();
  EXPECT_EQ(device_->Allocate(1 << 20).value().get(), first);
  EXPECT_EQ(device_->Allocate(0).value(), nullptr);
}

TEST_F(CudaDeviceTest, TooMuchMemoryIsAnErrorThatSaysHowMuchThereIs) {
  const Status status = device_->Allocate(int64_t{1} << 46).status();
  EXPECT_THAT(status.message(), HasSubstr("bytes of GPU memory"));
  EXPECT_THAT(status.message(), HasSubstr("MiB are free"));
  // And nothing else is wrong.
  EXPECT_TRUE(device_->Allocate(1 << 20).ok());
}

TEST_F(CudaDeviceTest, ThreadsMayShareIt) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const StreamHandle stream = device_->CreateStream().value();
      for (int i = 0; i < 50; ++i) {
        const auto pinned = device_->AllocatePinned(8192).value();
        const auto data = device_->Allocate(8192).value();
        std::memset(pinned.get(), t, 8192);
        ASSERT_TRUE(device_->Copy(data.get(), pinned.get(), 8192, stream).ok());
        ASSERT_TRUE(device_->Block(*device_->Record(stream).value()).ok());
        std::memset(pinned.get(), 0xEE, 8192);
        ASSERT_TRUE(device_->Copy(pinned.get(), data.get(), 8192, stream).ok());
        ASSERT_TRUE(device_->Block(*device_->Record(stream).value()).ok());
        EXPECT_EQ(pinned.get()[0], t);
        EXPECT_EQ(pinned.get()[8191], t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace mydist
