// ReadNcclApi takes what a library has, and says what is wrong with one that is no use.
#include "gpu/nccl_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace mydist::nccl {
namespace {

using ::testing::HasSubstr;

int reported_version = 0;
Outcome version_outcome = Outcome::kSuccess;

Outcome GetVersion(int* version) {
  *version = reported_version;
  return version_outcome;
}

// A library in which every function is the same one; none is called.
class FakeSymbols {
 public:
  explicit FakeSymbols(int version, std::set<std::string> missing = {})
      : missing_(std::move(missing)) {
    reported_version = version;
    version_outcome = Outcome::kSuccess;
  }

  Result<NcclApi> Read() {
    return ReadNcclApi([&](const char* name) -> void* {
      asked_.insert(name);
      if (missing_.contains(name)) return nullptr;
      if (std::string(name) == "ncclGetVersion") return reinterpret_cast<void*>(&GetVersion);
      return reinterpret_cast<void*>(&reported_version);
    });
  }

  const std::set<std::string>& asked() const { return asked_; }

 private:
  const std::set<std::string> missing_;
  std::set<std::string> asked_;
};

TEST(NcclSymbols, TakesAllOfANewLibrary) {
  FakeSymbols library(23203);
  const Result<NcclApi> api = library.Read();
  ASSERT_TRUE(api.ok()) << api.status().ToString();
  EXPECT_EQ(api->version, 23203);
  EXPECT_NE(api->AllReduce, nullptr);
  EXPECT_NE(api->RedOpDestroy, nullptr);
  EXPECT_NE(api->CommRevoke, nullptr);
  EXPECT_EQ(library.asked().size(), 27u);  // Each function, and the version, under its own name.
}

TEST(NcclSymbols, NewerFunctionsMayBeMissing) {
  const std::set<std::string> newer = {"ncclGetLastError",       "ncclCommSplit",
                                       "ncclCommRegister",       "ncclCommDeregister",
                                       "ncclCommWindowRegister", "ncclCommWindowDeregister",
                                       "ncclCommShrink",         "ncclCommRevoke"};
  const Result<NcclApi> api = FakeSymbols(21805, newer).Read();
  ASSERT_TRUE(api.ok()) << api.status().ToString();
  EXPECT_EQ(api->GetLastError, nullptr);
  EXPECT_EQ(api->CommSplit, nullptr);
  EXPECT_EQ(api->CommRegister, nullptr);
  EXPECT_EQ(api->CommDeregister, nullptr);
  EXPECT_EQ(api->CommWindowRegister, nullptr);
  EXPECT_EQ(api->CommWindowDeregister, nullptr);
  EXPECT_EQ(api->CommShrink, nullptr);
  EXPECT_EQ(api->CommRevoke, nullptr);
  EXPECT_NE(api->GetUniqueId, nullptr);
}

TEST(NcclSymbols, EveryOtherFunctionIsRequired) {
  FakeSymbols whole(23203);
  ASSERT_TRUE(whole.Read().ok());
  int refused_count = 0;
  for (const std::string& name : whole.asked()) {
    const Result<NcclApi> api = FakeSymbols(23203, {name}).Read();
    if (api.ok()) continue;
    ++refused_count;
    EXPECT_THAT(api.status().message(), HasSubstr(name));
  }
  EXPECT_EQ(refused_count, 19);
}

TEST(NcclSymbols, NamesVersionAndAllThatIsMissing) {
  const Status status = FakeSymbols(22102, {"ncclSend", "ncclRecv"}).Read().status();
  EXPECT_EQ(status.message(), "it is NCCL 2.21.2, but has no function ncclSend, ncclRecv");
}

TEST(NcclSymbols, AnOldVersionIsRefused) {
  EXPECT_EQ(FakeSymbols(21708).Read().status().message(),
            "it is NCCL 2.17.8, expected 2.18.0 or newer");
  EXPECT_EQ(FakeSymbols(2804).Read().status().message(),
            "it is NCCL 2.8.4, expected 2.18.0 or newer");
  EXPECT_TRUE(FakeSymbols(21800).Read().ok());
}

TEST(NcclSymbols, WhatHasNoVersionIsNoNccl) {
  EXPECT_THAT(FakeSymbols(23203, {"ncclGetVersion"}).Read().status().message(),
              HasSubstr("it is not NCCL"));
  FakeSymbols library(23203);
  version_outcome = Outcome::kInternalError;
  EXPECT_EQ(library.Read().status().message(), "ncclGetVersion failed with code 3");
}

}  // namespace
}  // namespace mydist::nccl
