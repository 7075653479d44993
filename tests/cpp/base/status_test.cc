#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace mydist {
namespace {

TEST(StatusTest, EveryErrorKeepsItsCodeAndMessage) {
  const std::vector<std::pair<Status, StatusCode>> errors = {
      {Status::InvalidArgument("m"), StatusCode::kInvalidArgument},
      {Status::TypeError("m"), StatusCode::kTypeError},
      {Status::Mismatch("m"), StatusCode::kMismatch},
      {Status::PeerLost("m"), StatusCode::kPeerLost},
      {Status::Timeout("m"), StatusCode::kTimeout},
      {Status::Aborted("m"), StatusCode::kAborted},
      {Status::VersionMismatch("m"), StatusCode::kVersionMismatch},
      {Status::Internal("m"), StatusCode::kInternal}};
  std::set<std::string> names;
  for (const auto& [status, code] : errors) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "m");
    EXPECT_EQ(status.ToString(), std::string(StatusCodeName(code)) + ": m");
    names.insert(std::string(StatusCodeName(code)));
  }
  EXPECT_EQ(names.size(), errors.size());
  EXPECT_EQ(StatusCodeName(StatusCode::kPeerLost), "PEER_LOST");
  EXPECT_EQ(StatusCodeName(static_cast<StatusCode>(99)), "UNKNOWN");
}

TEST(StatusTest, ContextIsPutBeforeTheMessage) {
  const Status status = Status::Timeout("no answer").WithContext("rank 3").WithContext("init");
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_EQ(status.message(), "init: rank 3: no answer");
  EXPECT_TRUE(Status::Ok().WithContext("anything").ok());
}

TEST(StatusTest, TheCauseIsKeptApartFromTheMessage) {
  const Status first = Status::PeerLost("rank 2 died");
  EXPECT_EQ(first.cause(), "rank 2 died");
  EXPECT_FALSE(first.is_consequence());
  const Status second =
      Status::PeerLost("rank 1 left").About({.cause = first.cause()}).WithContext("init");
  EXPECT_EQ(second.code(), StatusCode::kPeerLost);
  EXPECT_EQ(second.message(), "init: rank 1 left");
  EXPECT_EQ(second.cause(), "rank 2 died");
  EXPECT_TRUE(second.is_consequence());
  EXPECT_TRUE(Status::Ok().About({.cause = "anything"}).ok());
  EXPECT_EQ(Status::Ok().cause(), "");
}

TEST(StatusDeathTest, AnErrorWithTheCodeOkIsABug) {
  EXPECT_DEATH({ const Status status(StatusCode::kOk, "m"); }, "internal error at .*status.cc");
}

Status ReturnIfError(const Status& status, bool& went_on) {
  MYDIST_RETURN_IF_ERROR(status);
  went_on = true;
  return Status::Internal("went on");
}

TEST(StatusTest, ReturnIfErrorReturnsOnlyErrors) {
  bool went_on = false;
  EXPECT_EQ(ReturnIfError(Status::Aborted("stop"), went_on).message(), "stop");
  EXPECT_FALSE(went_on);
  EXPECT_EQ(ReturnIfError(Status::Ok(), went_on).message(), "went on");
  EXPECT_TRUE(went_on);
}

Result<std::unique_ptr<int>> MakeNumber(bool succeed) {
  if (!succeed) return Status::Mismatch("none");
  return std::make_unique<int>(7);
}

Result<int> ReadNumber(bool first, bool second) {
  MYDIST_ASSIGN_OR_RETURN(const std::unique_ptr<int> a, MakeNumber(first));
  MYDIST_ASSIGN_OR_RETURN(const std::unique_ptr<int> b, MakeNumber(second));
  return *a + *b;
}

TEST(ResultTest, AssignOrReturnMovesTheValueOut) {
  EXPECT_EQ(ReadNumber(true, true).value(), 14);
  EXPECT_EQ(ReadNumber(false, true).status().message(), "none");
  EXPECT_EQ(ReadNumber(true, false).status().code(), StatusCode::kMismatch);
}

TEST(ResultDeathTest, MisuseIsABug) {
  const Result<int> bad = Status::Internal("x");
  EXPECT_DEATH({ [[maybe_unused]] const int value = bad.value(); }, "internal error at .*status.h");
  EXPECT_DEATH({ const Result<int> none = Status::Ok(); }, "internal error at .*status.h");
}

TEST(Status, HostsOfOtherRanksAreNotFilledIn) {
  const Failure others{.ranks = {1, 2}, .hosts = {"a", "b"}, .pids = {3, 4}};
  const Status error = Status::PeerLost("rank 5 left").About({.ranks = {5}});
  EXPECT_TRUE(error.About(others).failure().hosts.empty());
  EXPECT_TRUE(error.About(others).failure().pids.empty());
  EXPECT_EQ(Status::PeerLost("they left").About(others).failure(), others);
}

}  // namespace
}  // namespace mydist
