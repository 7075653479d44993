#include "job/hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <random>

#include "conformance/status_checks.h"

namespace mydist {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Hello, SurvivesTheWire) {
  Hello hello = MakeHello("host-a", "MYDIST_X=1\nMYDIST_Y=2\n");
  hello.wants_timeline = true;
  EXPECT_FALSE(hello.pid_namespace.empty());
  hello.cores = {{0, 1, 4}, {{1.5, "27:4031"}, {6.0, "27:2"}}};
  hello.files = {990, 1024};
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

TEST(Hello, OfAnotherProtocolIsStillUnderstoodAsOne) {
  const std::string text =
      "mydist hello 99\n2.0.0\nlittle-endian 64-bit\nhost-b\n71\n" + std::string("\0\xff?", 3);
  const Result<Hello> decoded = DecodeHello({text.begin(), text.end()});
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->protocol, 99);
  EXPECT_EQ(decoded->version, "2.0.0");
  EXPECT_EQ(decoded->host, "host-b");
  EXPECT_EQ(decoded->pid, 71);
}

TEST(Hello, AProcessIsSeenInTheSameNamespaceOfTheSameHostOnly) {
  const Hello mine = MakeHello("host-a", "");
  Hello other = mine;
  other.pid = 71;
  EXPECT_TRUE(mine.Sees(other));
  other.pid_namespace = "another container";
  EXPECT_FALSE(mine.Sees(other));
  EXPECT_FALSE(mine.Sees(MakeHello("host-b", "")));
  Hello unknown = mine;
  unknown.pid_namespace = "";
  EXPECT_FALSE(unknown.Sees(unknown));
}

TEST(Hello, WhoSendsNoneIsNamed) {
  const std::vector<uint8_t> good = EncodeHello(MakeHello("host-a", "K=1\n"));
  ASSERT_TRUE(DecodeHellos({good, good}).ok());
  const Status status = DecodeHellos({good, {1, 2, 3}, good}).status();
  ExpectError(status, StatusCode::kVersionMismatch, {"rank 1: a peer does not run mydist "});
  EXPECT_THAT(status.failure().ranks, ElementsAre(1));
}

// Ranks 0 to 3 on host-a, but for rank 2, which is on host-b and has pid 71.
std::vector<Hello> FourHellos(const std::string& digest = "") {
  std::vector<Hello> hellos(4, MakeHello("host-a", digest));
  hellos[2].host = "host-b";
  hellos[2].pid = 71;
  return hellos;
}

struct OtherBuild {
  const char* property;
  std::function<void(Hello& hello)> change;
  const char* shown;
};

class HelloOfAnotherBuild : public ::testing::TestWithParam<OtherBuild> {};

TEST_P(HelloOfAnotherBuild, IsRefusedWithATable) {
  std::vector<Hello> hellos = FourHellos();
  GetParam().change(hellos[2]);
  const Hello& usual = hellos[0];
  const std::string build =
      "mydist " + usual.version + ", protocol " + std::to_string(kProtocol) + ", " + usual.platform;
  const Status status = CompareHellos(hellos);
  EXPECT_EQ(status.code(), StatusCode::kVersionMismatch);
  EXPECT_THAT(status.message(), StartsWith(std::string("the ranks run different builds of mydist, "
                                                       "which differ in their ") +
                                           GetParam().property +
                                           "; install the same one everywhere:"
                                           "\n  ranks 0, 1, 3 (host host-a): " +
                                           build + "\n  rank 2 (host host-b, pid 71): "));
  EXPECT_THAT(status.message(), HasSubstr(GetParam().shown));
  EXPECT_THAT(status.failure().ranks, ElementsAre(2));
  EXPECT_EQ(status.failure().host, "host-b");
  EXPECT_EQ(status.failure().pid, 71);
}

INSTANTIATE_TEST_SUITE_P(
    Properties, HelloOfAnotherBuild,
    ::testing::Values(
        OtherBuild{"version", [](Hello& hello) { hello.version = "9.9.9"; }, "mydist 9.9.9, "},
        OtherBuild{"protocol", [](Hello& hello) { hello.protocol = 99; }, ", protocol 99, "},
        OtherBuild{"platform", [](Hello& hello) { hello.platform = "big-endian 64-bit"; },
                   ", big-endian 64-bit"},
        OtherBuild{"version and protocol",
                   [](Hello& hello) { hello.version = "1", hello.protocol = 99; },
                   "mydist 1, protocol 99, "}),
    [](const auto& instance) { return "Number" + std::to_string(instance.index); });

// Another version may have other settings, which are not to blame.
TEST(Hello, AnotherVersionIsNotBlamedOnSettings) {
  std::vector<Hello> hellos = FourHellos("MYDIST_A=1\n");
  hellos[2].protocol = 99;
  hellos[2].config_digest = "";
  EXPECT_EQ(CompareHellos(hellos).code(), StatusCode::kVersionMismatch);
}

TEST(Hello, DifferentSettingsAreNamedWithTheirRanks) {
  std::vector<Hello> hellos = FourHellos("MYDIST_CACHE_CAPACITY=1024\nMYDIST_Z=1\n");
  hellos[2].config_digest = "MYDIST_CACHE_CAPACITY=8\nMYDIST_Z=1\n";
  const Status status = CompareHellos(hellos);
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_EQ(status.message(),
            "MYDIST_CACHE_CAPACITY must be the same on every rank; set it in one place, or let "
            "mydistrun pass it on:"
            "\n  ranks 0, 1, 3 (host host-a): 1024"
            "\n  rank 2 (host host-b, pid 71): 8");
  EXPECT_THAT(status.failure().ranks, ElementsAre(2));
}

// One table for each; a rank that lacks one has it unset.
TEST(Hello, AllSettingsThatDifferAreTold) {
  std::vector<Hello> hellos = FourHellos("MYDIST_A=1\nMYDIST_B=2\nMYDIST_Z=1\n");
  hellos[0].config_digest = "MYDIST_A=3\nMYDIST_B=2\nMYDIST_Z=1\n";
  hellos[2].config_digest = "MYDIST_A=1\nMYDIST_Z=1\n";
  const Status status = CompareHellos(hellos);
  EXPECT_THAT(
      status.message(),
      StartsWith("MYDIST_A and MYDIST_B must be the same on every rank; set them in one "
                 "place, or let mydistrun pass them on:\nMYDIST_A:\n  rank 0 (host host-a, "));
  EXPECT_THAT(status.message(), EndsWith("\nMYDIST_B:\n  ranks 0, 1, 3 (host host-a): 2"
                                         "\n  rank 2 (host host-b, pid 71): unset"));
  EXPECT_THAT(status.message(), Not(HasSubstr("MYDIST_Z")));
  EXPECT_THAT(status.failure().ranks, ElementsAre(0, 2));
}

TEST(Hello, ATableHasAnEnd) {
  std::vector<Hello> hellos;
  for (int rank = 0; rank < 1000; ++rank) {
    hellos.push_back(MakeHello("h", "MYDIST_A=" + std::to_string(rank) + "\n"));
  }
  const std::string message = CompareHellos(hellos).message();
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 17);
  EXPECT_THAT(message, EndsWith("\n  984 more ranks have other values"));
}

TEST(Hello, ARankThatMayOpenTooFewFilesIsNamed) {
  std::vector<Hello> hellos = FourHellos();
  hellos[0].files = {100, 1024};
  hellos[2].files = {6, 64};  // The others do not know.
  EXPECT_TRUE(CheckOpenFiles(hellos, 6).ok());
  const Status status = CheckOpenFiles(hellos, 7);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(),
            "rank 2 (host host-b, pid 71) can open 6 more files, and a job of 4 ranks needs at "
            "least 7 on each. Its limit is 64; raise it with `ulimit -n` before the start");
  EXPECT_THAT(status.failure().ranks, ElementsAre(2));
}

TEST(OpenFiles, CountsThoseThatCanStillBeOpened) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int high = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 200);
  ASSERT_GE(high, 200);
  const rlimit lower{100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  const OpenFiles told = OpenFiles::OfThisProcess();
  std::vector<int> opened;
  while (true) {
    const int descriptor = dup(STDERR_FILENO);
    if (descriptor < 0) break;
    opened.push_back(descriptor);
  }
  const OpenFiles none = OpenFiles::OfThisProcess();
  for (const int descriptor : opened) close(descriptor);
  close(high);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(told.limit, 100);
  EXPECT_EQ(told.free_count, static_cast<int64_t>(opened.size()));
  EXPECT_EQ(none.free_count, 0);
}

TEST(Hello, EqualOnesPass) {
  EXPECT_TRUE(CompareHellos(std::vector<Hello>(5, MakeHello("h", "A=1\n"))).ok());
}

}  // namespace
}  // namespace mydist
