// What the plugin for GPUs says of the machine, where it can be used and where it cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "algorithms/device/device_plugin.h"
#include "gpu/cuda_driver.h"
#include "gpu/host_cuda/host_cuda.h"

extern "C" mydist::DevicePlugin* mydist_device_plugin_v1();

namespace mydist::cuda {
namespace {

using host_cuda::FailNext;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string& NcclFolder() {
  static const auto* folder = new std::string(MYDIST_STAND_IN_FOLDER "/good");
  return *folder;
}

struct Obstacle {
  cudaError_t error;
  ::testing::Matcher<std::string> reason;
};

std::vector<Obstacle> Obstacles() {
  const std::string own = VersionText(CUDART_VERSION);
  return {{cudaErrorNoDevice, AllOf(HasSubstr("the NVIDIA driver shows no GPU to this process"),
                                    HasSubstr("CUDA_VISIBLE_DEVICES may hide GPUs"))},
          {cudaErrorInsufficientDriver,
           AllOf(HasSubstr("the NVIDIA driver is for CUDA " + own), HasSubstr("expected " + own),
                 HasSubstr("Update the driver, or build mydist with an older CUDA toolkit"))},
          {cudaErrorInitializationError,
           AllOf(HasSubstr("cudaGetDeviceCount failed"), HasSubstr("initialization error"))}};
}

// Whatever was asked for. Nothing of it is kept: a driver may be loaded later.
TEST(CudaPlugin, SaysWhyThereIsNoGpu) {
  DevicePlugin& plugin = *mydist_device_plugin_v1();
  const NcclPlaces places{.path = "", .folders = {NcclFolder()}};
  for (const Obstacle& obstacle : Obstacles()) {
    FailNext("cudaGetDeviceCount", obstacle.error);
    EXPECT_THAT(plugin.DeviceCount().status().message(), obstacle.reason);
    EXPECT_EQ(host_cuda::LastError(), cudaSuccess);
    FailNext("cudaGetDeviceCount", obstacle.error);
    EXPECT_THAT(plugin.Description(places).status().message(), obstacle.reason);
    FailNext("cudaGetDeviceCount", obstacle.error);
    EXPECT_THAT(plugin.OpenDevice(0).status().message(), obstacle.reason);
    EXPECT_EQ(host_cuda::LastError(), cudaSuccess);
    EXPECT_EQ(plugin.DeviceCount().value(), host_cuda::kGpuCount);
  }
}

TEST(CudaPlugin, DescribesWhatItHas) {
  DevicePlugin& plugin = *mydist_device_plugin_v1();
  const Result<std::string> nothing =
      plugin.Description({.path = "/nowhere/libnccl.so.2", .folders = {}});
  EXPECT_THAT(nothing.status().message(), HasSubstr("MYDIST_NCCL_LIBRARY='/nowhere/"));
  const Result<std::string> text = plugin.Description({.path = "", .folders = {NcclFolder()}});
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const std::string own = VersionText(CUDART_VERSION);
  EXPECT_EQ(*text, "NCCL 2.32.3 from " + NcclFolder() + "/libnccl.so.2, CUDA runtime " + own +
                       ", driver " + own + ", 3 GPUs");
}

}  // namespace
}  // namespace mydist::cuda
