// Plugins are found beside libmydist.so, opened once, and reported without touching the network.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "algorithms/device/device_plugin.h"
#include "conformance/status_checks.h"
#include "job/build_report.h"
#include "mydist/build_config.h"
#include "transport/factory.h"
#include "transport/plugin_function.h"
#include "transport/registry.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;

TEST(PluginLoader, OpensAPluginOnce) {
  for (const auto& [name, built] : {std::pair<std::string, bool>{"mpi", build_config::kMpiBuilt},
                                    {"gloo", build_config::kGlooBuilt}}) {
    const Result<BackendPlugin*> first = LoadPlugin(name);
    if (!built) {
      EXPECT_FALSE(first.ok());
      continue;
    }
    ASSERT_TRUE(first.ok()) << first.status().ToString();
    EXPECT_EQ(first.value()->name(), name);
    EXPECT_EQ(first.value(), LoadPlugin(name).value());
  }
}

TEST(PluginLoader, WhatAnotherVersionCompiledIsRefused) {
  EXPECT_TRUE(CheckCompiledFor("backend 'mpi'", build_config::kVersion).ok());
  const Status other = CheckCompiledFor("backend 'mpi'", "0.0.9");
  ExpectError(other, StatusCode::kVersionMismatch,
              {"backend 'mpi' was compiled for mydist 0.0.9, and"});
  EXPECT_THAT(CheckCompiledFor("it", nullptr).message(), HasSubstr("an older version of mydist"));
}

// As every library that is opened says.
TEST(PluginLoader, ALibraryThatIsNoPluginIsRefused) {
  if (!build_config::kGlooBuilt) GTEST_SKIP() << "not built";
  const Result<void*> function = PluginFunction("gloo", "", "no_such_function");
  ExpectError(function.status(), StatusCode::kVersionMismatch,
              {"does not export no_such_function"});
}

TEST(PluginLoader, AnUnknownNameSaysWhatExists) {
  const Result<BackendPlugin*> plugin = LoadPlugin("carrier-pigeon");
  ASSERT_FALSE(plugin.ok());
  EXPECT_THAT(plugin.status().message(), HasSubstr("'carrier-pigeon'"));
  EXPECT_THAT(plugin.status().message(), HasSubstr("expected auto, local, mpi or gloo"));
}

TEST(PluginLoader, NcclConnectsNoRanks) {
  EXPECT_THAT(LoadPlugin("nccl").status().message(),
              HasSubstr("expected auto, local, mpi or gloo"));
}

TEST(PluginLoader, GpusThatWereNotBuiltAreAReason) {
  if (build_config::kCudaBuilt) GTEST_SKIP() << "they were";
  EXPECT_THAT(LoadDevicePlugin().status().message(), HasSubstr(build_config::kCudaReason));
  EXPECT_THAT(FindNcclVersion({}).status().message(), HasSubstr(build_config::kCudaReason));
}

TEST(BuildReport, HasARowPerBackend) {
  const std::vector<BackendReport> rows = ReportBackends({});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].name, "local");
  EXPECT_TRUE(rows[0].available);
  EXPECT_EQ(rows[1].name, "mpi");
  EXPECT_EQ(rows[1].built, build_config::kMpiBuilt);
  EXPECT_EQ(rows[2].name, "gloo");
  EXPECT_EQ(rows[2].built, build_config::kGlooBuilt);
  EXPECT_EQ(rows[3].name, "nccl");
  EXPECT_EQ(rows[3].built, build_config::kCudaBuilt);
  for (const BackendReport& row : rows) {
    EXPECT_EQ(row.reason.empty(), row.available) << row.name;
    EXPECT_EQ(row.description.empty(), !row.available) << row.name;
  }
}

TEST(BuildReport, JsonNamesVersionAndBackends) {
  const std::string json = mydist_build_report(nullptr);
  EXPECT_THAT(json, HasSubstr(std::string("\"version\": \"") + build_config::kVersion + "\""));
  EXPECT_THAT(json, HasSubstr("{\"name\": \"local\", \"built\": true, \"available\": true"));
  const std::string built = build_config::kCudaBuilt ? "true" : "false";
  EXPECT_THAT(json, HasSubstr("\"name\": \"nccl\", \"built\": " + built + ", \"available\": "));
}

// torch brings a Gloo of its own; the plugin must only ever see the system's.
TEST(SymbolIsolation, GlooComesFromLibgloo) {
  if (!build_config::kGlooBuilt) GTEST_SKIP() << build_config::kGlooReason;
  const Result<BackendPlugin*> plugin = LoadPlugin("gloo");
  ASSERT_TRUE(plugin.ok()) << plugin.status().ToString();
  // The plugin is open already; its exported functions are not visible globally.
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "mydist_gloo_symbol_origin"), nullptr);
  auto origin = PluginFunction<const char* (*)()>(plugin.value(), "mydist_gloo_symbol_origin");
  ASSERT_NE(origin, nullptr);
  EXPECT_THAT(std::string(origin()), HasSubstr("libgloo.so"));
}

}  // namespace
}  // namespace mydist
