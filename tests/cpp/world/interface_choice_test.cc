#include "world/interface_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conformance/status_checks.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;

const std::vector<InterfaceAddress> kHost = {
    {"lo", "127.0.0.1", false, true}, {"docker0", "172.17.0.1", false, false},
    {"eth0", "fd00::7", true, false}, {"eth0", "10.0.0.7", false, false},
    {"ib0", "fd01::9", true, false},
};

std::string Chosen(const InterfaceWish& wish) {
  const Result<InterfaceAddress> chosen = ChooseInterface(kHost, wish);
  return chosen.ok() ? chosen->name + " " + chosen->address : chosen.status().ToString();
}

TEST(InterfaceChoice, TheFirstNamedThatExistsWinsIpv4First) {
  EXPECT_EQ(Chosen({{"eth0"}, false, {}}), "eth0 10.0.0.7");
  EXPECT_EQ(Chosen({{"nope", "ib0", "eth0"}, false, {}}), "ib0 fd01::9");
  EXPECT_EQ(Chosen({{"eth0"}, true, {}}), "eth0 10.0.0.7");
}

TEST(InterfaceChoice, AJobOnOneHostStaysOnLoopback) {
  EXPECT_EQ(Chosen({{}, true, {"10.0.0.7"}}), "lo 127.0.0.1");
}

TEST(InterfaceChoice, TheRouteDecidesBetweenSeveral) {
  EXPECT_EQ(Chosen({{}, false, {"10.0.0.7"}}), "eth0 10.0.0.7");
}

TEST(InterfaceChoice, TheRouteToTheMeetingPointComesBeforeTheDefaultRoute) {
  EXPECT_EQ(Chosen({{}, false, {"fd01::9", "172.17.0.1"}}), "ib0 fd01::9");
  // A host name that means loopback, as Debian's own /etc/hosts has it, says nothing.
  EXPECT_EQ(Chosen({{}, false, {"127.0.0.1", "10.0.0.7"}}), "eth0 10.0.0.7");
}

TEST(InterfaceChoice, WithoutARouteTheFirstOutsideLoopback) {
  EXPECT_EQ(Chosen({{}, false, {}}), "docker0 172.17.0.1");
  EXPECT_EQ(Chosen({{}, false, {"127.0.0.1"}}), "docker0 172.17.0.1");
}

TEST(InterfaceChoice, NamesThatDoNotExistAreAnErrorListingWhatDoes) {
  const auto chosen = ChooseInterface(kHost, {{"eth1", "wlan0"}, false, {}});
  ExpectError(chosen.status(), StatusCode::kInvalidArgument,
              {"'eth1,wlan0'", "docker0 (172.17.0.1), eth0 (fd00::7)"});
}

TEST(InterfaceChoice, SeveralHostsWithLoopbackOnlyCannotWork) {
  const auto chosen = ChooseInterface({kHost[0]}, {{}, false, {}});
  ASSERT_FALSE(chosen.ok());
  EXPECT_THAT(chosen.status().message(), HasSubstr("several hosts"));
  EXPECT_THAT(chosen.status().message(), HasSubstr("lo (127.0.0.1)"));
}

TEST(RouteAddresses, LeadToTheMeetingPointFirst) {
  const std::vector<std::string> found = RouteAddresses("127.0.0.1");
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front(), "127.0.0.1");
  EXPECT_EQ(RouteAddresses("::1").front(), "::1");
  EXPECT_EQ(RouteAddresses("no such host"), RouteAddresses(""));
}

TEST(InterfaceAddresses, FindsLoopback) {
  const auto found = InterfaceAddresses();
  ASSERT_TRUE(found.ok());
  bool has_loopback = false;
  for (const InterfaceAddress& each : *found) has_loopback |= each.is_loopback;
  EXPECT_TRUE(has_loopback);
}

}  // namespace
}  // namespace mydist
