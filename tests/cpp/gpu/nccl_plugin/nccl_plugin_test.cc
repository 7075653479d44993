// libmydist_nccl.so loads on any machine, and says what the machine lacks.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "algorithms/device/device_plugin.h"
#include "conformance/status_checks.h"
#include "job/build_report.h"

namespace mydist {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::StartsWith;

DevicePlugin* Plugin() {
  const Result<DevicePlugin*> plugin = LoadDevicePlugin();
  ExpectOk(plugin.status());
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

// Ends the process. Who opens the driver gets the library of its name that is there already.
void TellReason(const std::string& driver) {
  const std::string path = MYDIST_STAND_IN_FOLDER "/driver_" + driver + "/libcuda.so.1";
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) std::abort();
  const Result<int> count = Plugin()->DeviceCount();
  std::fputs(count.ok() ? "there are GPUs" : count.status().message().c_str(), stderr);
  std::_Exit(0);
}

// CUDA's own runtime finds that out; each time in a new process, as it keeps what it has found.
TEST(NcclPlugin, OfADriverThatIsNoGoodSaysWhy) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(TellReason("old"), ExitedWithCode(0),
              AllOf(HasSubstr("the NVIDIA driver is for CUDA 11.4, expected 1"),
                    HasSubstr("Update the driver, or build mydist with an older CUDA toolkit")));
  EXPECT_EXIT(TellReason("lacking"), ExitedWithCode(0),
              AllOf(HasSubstr("the NVIDIA driver (libcuda.so.1) is too old"),
                    HasSubstr("it lacks functions of CUDA 11. Update it")));
  EXPECT_EXIT(TellReason("alone"), ExitedWithCode(0),
              AllOf(HasSubstr("the NVIDIA driver shows no GPU to this process"),
                    HasSubstr("CUDA_VISIBLE_DEVICES may hide GPUs")));
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
