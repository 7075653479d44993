#include "job/job_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "conformance/status_checks.h"

namespace mydist {
namespace {

using ::testing::HasSubstr;

TEST(Hello, SurvivesTheWire) {
  Hello hello = MakeHello("host-a", "MYDIST_X=1\nMYDIST_Y=2\n");
  hello.wants_timeline = true;
  hello.cores = {{0, 1, 4}, {{1.5, "27:4031"}, {6.0, "27:2"}}};
  const Result<Hello> decoded = DecodeHello(EncodeHello(hello));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, hello);
}

TEST(Hello, AnythingElseIsAVersionMismatch) {
  const std::vector<uint8_t> good = EncodeHello(MakeHello("host-a", "K=1\n"));
  EXPECT_EQ(DecodeHello({}).status().code(), StatusCode::kVersionMismatch);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint8_t> bytes(random() % 64);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    EXPECT_EQ(DecodeHello(bytes).status().code(), StatusCode::kVersionMismatch);
  }
  for (size_t length = 0; length + 20 < good.size(); ++length) {
    const Result<Hello> cut = DecodeHello({good.begin(), good.begin() + std::ptrdiff_t(length)});
    if (cut.ok()) {
      EXPECT_NE(*cut, *DecodeHello(good));
    }
  }
}

TEST(Hello, DifferentVersionsAreRefusedWithATable) {
  std::vector<Hello> hellos(3, MakeHello("host-a", ""));
  hellos[2].version = "9.9.9";
  hellos[2].host = "host-b";
  hellos[2].pid = 71;
  const Status status = CompareHellos(hellos);
  ExpectError(status, StatusCode::kVersionMismatch,
              {"rank 2 (host host-b, pid 71): mydist 9.9.9", "to rank 1: mydist "});
}

TEST(Hello, DifferentSettingsAreNamedWithTheirRanks) {
  std::vector<Hello> hellos(4, MakeHello("h", "MYDIST_CACHE_CAPACITY=1024\nMYDIST_Z=1\n"));
  hellos[3].config_digest = "MYDIST_CACHE_CAPACITY=8\nMYDIST_Z=1\n";
  const Status status = CompareHellos(hellos);
  ExpectError(status, StatusCode::kMismatch,
              {"MYDIST_CACHE_CAPACITY must be the same on every rank", "): 8", "1024"});
  EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("MYDIST_Z")));
}

TEST(Hello, EqualOnesPass) {
  EXPECT_TRUE(CompareHellos(std::vector<Hello>(5, MakeHello("h", "A=1\n"))).ok());
}

}  // namespace
}  // namespace mydist
