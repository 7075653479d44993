// libmydist_nccl.so loads on any machine, and says what the machine lacks.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "backends/factory.h"

namespace mydist {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

DevicePlugin* Plugin() {
  const Result<DevicePlugin*> plugin = LoadDevicePlugin();
  EXPECT_TRUE(plugin.ok()) << plugin.status().ToString();
  return plugin.ok() ? *plugin : nullptr;
}

bool HasDriver() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver != nullptr) dlclose(driver);
  return driver != nullptr;
}

TEST(NcclPlugin, IsOpenedOnceAndStaysInside) {
  DevicePlugin* const plugin = Plugin();
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin->name(), "nccl");
  EXPECT_EQ(Plugin(), plugin);
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "mydist_device_plugin_v1"), nullptr);
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "cudaMalloc"), nullptr);
}

TEST(NcclPlugin, WithoutADriverThatIsTheReason) {
  if (HasDriver()) GTEST_SKIP() << "this machine has an NVIDIA driver";
  DevicePlugin* const plugin = Plugin();
  ASSERT_NE(plugin, nullptr);
  const std::string reason = "no NVIDIA driver found (libcuda.so.1)";
  EXPECT_EQ(plugin->DeviceCount().status().message(), reason);
  EXPECT_EQ(plugin->OpenDevice(0).status().message(), reason);
  EXPECT_EQ(plugin->Description({}).status().message(), reason);
  const BackendReport report = ReportBackend("nccl", {});
  EXPECT_TRUE(report.built);
  EXPECT_FALSE(report.available);
  EXPECT_EQ(report.reason, reason);
}

TEST(NcclPlugin, TheVersionOfNcclNeedsNoDriver) {
  DevicePlugin* const plugin = Plugin();
  ASSERT_NE(plugin, nullptr);
  const std::string missing = "/nowhere/libnccl.so.2";
  EXPECT_THAT(plugin->NcclVersion({.path = missing, .folders = {}}).status().message(),
              HasSubstr("MYDIST_NCCL_LIBRARY='" + missing + "'"));
  // A failure is not kept.
  const NcclPlaces places{.path = "", .folders = {MYDIST_STAND_IN_FOLDER "/good"}};
  const Result<int> version = plugin->NcclVersion(places);
  ASSERT_TRUE(version.ok()) << version.status().ToString();
  EXPECT_EQ(*version, 23203);
}

TEST(NcclPlugin, DescribesWhatItHas) {
  DevicePlugin* const plugin = Plugin();
  ASSERT_NE(plugin, nullptr);
  const Result<int> count = plugin->DeviceCount();
  if (!count.ok()) GTEST_SKIP() << count.status().message();
  const Result<std::string> text =
      plugin->Description({.path = "", .folders = {MYDIST_STAND_IN_FOLDER "/good"}});
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_THAT(*text, StartsWith("NCCL 2."));
  EXPECT_THAT(*text, HasSubstr("libnccl.so.2, CUDA runtime 1"));
  EXPECT_THAT(*text, AnyOf(HasSubstr(std::to_string(*count) + " GPUs"), HasSubstr(", 1 GPU")));
}

}  // namespace
}  // namespace mydist
