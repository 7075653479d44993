#include "config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include "mydist/build_config.h"

namespace mydist {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<Config> ConfigOf(const Variables& variables) {
  return Config::From([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

// The Config with one variable set; aborts the test process when it is refused.
Config With(const std::string& name, const std::string& value) {
  return ConfigOf({{name, value}}).value();
}

std::vector<std::string> Fields(const Config& config) {
  std::vector<std::string> fields = {
      std::to_string(config.fusion_threshold_bytes),
      std::to_string(config.cache_capacity),
      std::to_string(config.coordinator_radix),
      std::to_string(config.freeze_after),
      std::to_string(config.stall_warning.count()),
      std::to_string(config.stall_shutdown.count()),
      std::to_string(config.heartbeat_timeout.count()),
      std::to_string(config.shutdown_drain.count()),
      std::to_string(config.connect_timeout.count()),
      config.timeline_path,
      std::to_string(config.timeline_mark_cycles),
      config.flight_recorder_folder,
      std::to_string(config.stall_stack),
      config.controller,
      config.algorithm,
      config.hierarchical_allreduce ? std::to_string(*config.hierarchical_allreduce) : "unset",
      config.simd,
      config.bucket_size_bytes ? std::to_string(*config.bucket_size_bytes) : "unset",
      std::to_string(config.check_consistency_steps),
      std::to_string(config.check_finite),
      std::to_string(config.servers),
      std::to_string(config.ps_piece_kilobytes),
      std::to_string(config.ps_in_flight_megabytes),
      std::to_string(config.ps_threads),
      config.nccl_library,
      std::to_string(static_cast<int>(config.log_level)),
      config.host_id};
  fields.insert(fields.end(), config.network_interfaces.begin(), config.network_interfaces.end());
  fields.insert(fields.end(), config.plugins.begin(), config.plugins.end());
  return fields;
}

TEST(ConfigTest, DefaultsOfTheKnobsAreThoseOfTheStruct) {
  Variables defaults;
  for (const Knob& knob : Knobs()) defaults[knob.variable] = knob.default_value;
  EXPECT_EQ(Fields(ConfigOf(defaults).value()), Fields(Config{}));
}

TEST(ConfigTest, EmptyValueCountsAsUnset) {
  Variables empty;
  for (const Knob& knob : Knobs()) empty[knob.variable] = "";
  EXPECT_EQ(Fields(ConfigOf({}).value()), Fields(Config{}));
  EXPECT_EQ(Fields(ConfigOf(empty).value()), Fields(Config{}));
}

TEST(ConfigTest, EveryKnobIsRead) {
  const Variables variables = {
      {"MYDIST_FUSION_THRESHOLD_MB", "2"},
      {"MYDIST_CACHE_CAPACITY", "7"},
      {"MYDIST_COORDINATOR_RADIX", "3"},
      {"MYDIST_FREEZE_AFTER", "5"},
      {"MYDIST_STALL_WARNING_SECONDS", "11"},
      {"MYDIST_STALL_SHUTDOWN_SECONDS", "12"},
      {"MYDIST_HEARTBEAT_TIMEOUT_SECONDS", "12.5"},
      {"MYDIST_SHUTDOWN_SECONDS", "13"},
      {"MYDIST_TIMEOUT_SECONDS", "14"},
      {"MYDIST_TIMELINE", "/tmp/a b.json"},
      {"MYDIST_TIMELINE_MARK_CYCLES", "1"},
      {"MYDIST_FLIGHT_RECORDER_DIR", "/tmp/r d"},
      {"MYDIST_STALL_STACK", "1"},
      {"MYDIST_CONTROLLER", "gloo"},
      {"MYDIST_ALGORITHM", "flat"},
      {"MYDIST_PLUGINS", "/a/x.so:y.so"},
      {"MYDIST_NETWORK_INTERFACES", "eth0,eth1"},
      {"MYDIST_HIERARCHICAL_ALLREDUCE", "0"},
      {"MYDIST_SHARED_MEMORY", "0"},
      {"MYDIST_SIMD", "avx2"},
      {"MYDIST_CROSS_MEMORY_ATTACH", "off"},
      {"MYDIST_BUCKET_SIZE_MB", "4"},
      {"MYDIST_CHECK_CONSISTENCY", "100"},
      {"MYDIST_CHECK_FINITE", "1"},
      {"MYDIST_SERVERS", "3"},
      {"MYDIST_PS_PIECE_KB", "512"},
      {"MYDIST_PS_IN_FLIGHT_MB", "8"},
      {"MYDIST_PS_THREADS", "2"},
      {"MYDIST_NCCL_LIBRARY", "/opt/nccl.so"},
      {"MYDIST_LOG_LEVEL", "debug"},
      {"MYDIST_HOST_ID", "host"},
  };
  EXPECT_EQ(variables.size(), Knobs().size());  // A new knob wants a line here.
  EXPECT_THAT(Fields(ConfigOf(variables).value()),
              ElementsAre("2097152", "7", "3", "5", "11000", "12000", "12500", "13000", "14000",
                          "/tmp/a b.json", "1", "/tmp/r d", "1", "gloo", "flat", "0", "avx2",
                          "4194304", "100", "1", "3", "512", "8", "2", "/opt/nccl.so", "1", "host",
                          "eth0", "eth1", "/a/x.so", "y.so"));
}

TEST(ConfigTest, EdgesOfTheRangesAreAllowed) {
  EXPECT_EQ(With("MYDIST_FUSION_THRESHOLD_MB", "0").fusion_threshold_bytes, 0);
  EXPECT_EQ(With("MYDIST_FUSION_THRESHOLD_MB", "0.5").fusion_threshold_bytes, 512 << 10);
  EXPECT_EQ(With("MYDIST_FUSION_THRESHOLD_MB", "1e-9").fusion_threshold_bytes, 1);
  EXPECT_EQ(With("MYDIST_FUSION_THRESHOLD_MB", "1048576").fusion_threshold_bytes, int64_t{1} << 40);
  EXPECT_EQ(With("MYDIST_BUCKET_SIZE_MB", "0").bucket_size_bytes, 0);
  EXPECT_EQ(With("MYDIST_BUCKET_SIZE_MB", "1048576").bucket_size_bytes, int64_t{1} << 40);
  EXPECT_EQ(With("MYDIST_CACHE_CAPACITY", "0").cache_capacity, 0);
  EXPECT_EQ(With("MYDIST_CACHE_CAPACITY", "1000000").cache_capacity, 1000000);
  EXPECT_EQ(With("MYDIST_COORDINATOR_RADIX", "2").coordinator_radix, 2);
  EXPECT_EQ(With("MYDIST_COORDINATOR_RADIX", "1024").coordinator_radix, 1024);
  EXPECT_EQ(With("MYDIST_STALL_WARNING_SECONDS", "0").stall_warning, milliseconds(0));
  EXPECT_EQ(With("MYDIST_STALL_WARNING_SECONDS", "0.25").stall_warning, milliseconds(250));
  EXPECT_EQ(With("MYDIST_STALL_SHUTDOWN_SECONDS", "1e6").stall_shutdown, milliseconds(1000000000));
  // Too short for a millisecond is still not "never".
  EXPECT_EQ(With("MYDIST_STALL_SHUTDOWN_SECONDS", "1e-05").stall_shutdown, milliseconds(1));
  EXPECT_EQ(With("MYDIST_HEARTBEAT_TIMEOUT_SECONDS", "0").heartbeat_timeout, milliseconds(0));
  EXPECT_EQ(With("MYDIST_HEARTBEAT_TIMEOUT_SECONDS", "0.1").heartbeat_timeout, milliseconds(100));
  EXPECT_EQ(With("MYDIST_SHUTDOWN_SECONDS", "0").shutdown_drain, milliseconds(0));
  EXPECT_EQ(With("MYDIST_TIMEOUT_SECONDS", "0.1").connect_timeout, milliseconds(100));
  EXPECT_EQ(With("MYDIST_CHECK_CONSISTENCY", "-1").check_consistency_steps, -1);
  EXPECT_EQ(With("MYDIST_CHECK_CONSISTENCY", "1000000000").check_consistency_steps, 1'000'000'000);
  EXPECT_EQ(With("MYDIST_TIMELINE", std::string(4095, 'p')).timeline_path.size(), 4095U);
  EXPECT_EQ(With("MYDIST_HOST_ID", std::string(255, 'h')).host_id.size(), 255U);
}

TEST(ConfigTest, WordsAreRead) {
  for (const char* word : {"1", "true"}) {
    EXPECT_TRUE(With("MYDIST_TIMELINE_MARK_CYCLES", word).timeline_mark_cycles);
    EXPECT_EQ(With("MYDIST_HIERARCHICAL_ALLREDUCE", word).hierarchical_allreduce, true);
  }
  for (const char* word : {"0", "false"}) {
    EXPECT_FALSE(With("MYDIST_TIMELINE_MARK_CYCLES", word).timeline_mark_cycles);
    EXPECT_EQ(With("MYDIST_HIERARCHICAL_ALLREDUCE", word).hierarchical_allreduce, false);
  }
  for (const char* word : {"auto", "mpi", "gloo", "local"}) {
    EXPECT_EQ(With("MYDIST_CONTROLLER", word).controller, word);
  }
  for (const char* word : {"auto", "avx512", "avx2", "portable"}) {
    EXPECT_EQ(With("MYDIST_SIMD", word).simd, word);
  }
  const std::vector<std::pair<const char*, LogLevel>> levels = {
      {"trace", LogLevel::kTrace},     {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo},
      {"warning", LogLevel::kWarning}, {"error", LogLevel::kError}, {"off", LogLevel::kOff}};
  for (const auto& [word, level] : levels) {
    EXPECT_EQ(With("MYDIST_LOG_LEVEL", word).log_level, level);
  }
  EXPECT_THAT(With("MYDIST_NETWORK_INTERFACES", "eth0").network_interfaces, ElementsAre("eth0"));
  EXPECT_THAT(With("MYDIST_NETWORK_INTERFACES", " a , fifteen-letters").network_interfaces,
              ElementsAre("a", "fifteen-letters"));
}

// As messages show it: not all of a long one, and nothing that a terminal would obey.
std::string Shown(const std::string& value) {
  std::string text;
  for (const char c : value.substr(0, 100)) {
    text += c == '\n' ? "\\x0a" : c == '\x1b' ? "\\x1b" : std::string(1, c);
  }
  return "'" + text + "'" + (value.size() > 100 ? "…" : "");
}

void ExpectRefused(const std::string& variable, const std::string& value) {
  const auto config = ConfigOf({{variable, value}});
  ASSERT_FALSE(config.ok()) << variable << "=" << value;
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  // As docs/configuration.md has it: documentation_test.
  const std::vector<Knob> knobs = Knobs();
  const auto knob = std::find_if(knobs.begin(), knobs.end(),
                                 [&](const Knob& each) { return each.variable == variable; });
  ASSERT_NE(knob, knobs.end()) << variable;
  EXPECT_EQ(config.status().message(),
            variable + "=" + Shown(value) + " is not valid: expected " + knob->allowed);
}

TEST(BadValueTest, IsRefusedNamingVariableValueAndRange) {
  const std::map<std::string, std::vector<std::string>> bad_values = {
      {"MYDIST_FUSION_THRESHOLD_MB",
       {"abc", "-1e-300", "1048576.5", "nan", "1e999", "64MB", "64,5"}},
      {"MYDIST_CACHE_CAPACITY",
       {"-1", "1000001", "10.5", "1e3", "0x10", "+5", " 5", "5\n", "99999999999999999999",
        std::string(200, '9')}},
      {"MYDIST_COORDINATOR_RADIX", {"1", "1025"}},
      {"MYDIST_FREEZE_AFTER", {"1000001"}},
      {"MYDIST_STALL_WARNING_SECONDS", {"-0.001"}},
      {"MYDIST_STALL_SHUTDOWN_SECONDS", {"never"}},
      {"MYDIST_HEARTBEAT_TIMEOUT_SECONDS", {"0.099", "1e-9", "-0.1"}},
      {"MYDIST_SHUTDOWN_SECONDS", {"5 seconds"}},
      {"MYDIST_TIMEOUT_SECONDS", {"0.09"}},
      {"MYDIST_TIMELINE", {std::string(4096, 'p')}},
      {"MYDIST_TIMELINE_MARK_CYCLES", {"yes", "2", "True"}},
      {"MYDIST_FLIGHT_RECORDER_DIR", {std::string(4096, 'p')}},
      {"MYDIST_STALL_STACK", {"python"}},
      {"MYDIST_CONTROLLER", {"MPI", "mpi,gloo"}},
      {"MYDIST_NETWORK_INTERFACES",
       {",", "eth0,", "eth0,,eth1", "../etc", "sixteen-letters-", "eth\x1b[0m"}},
      {"MYDIST_HIERARCHICAL_ALLREDUCE", {"on"}},
      {"MYDIST_SHARED_MEMORY", {"2"}},
      {"MYDIST_CROSS_MEMORY_ATTACH", {"1"}},
      {"MYDIST_CHECK_CONSISTENCY", {"-2", "1000000001"}},
      {"MYDIST_CHECK_FINITE", {"on"}},
      {"MYDIST_SERVERS", {"0", "1025", "two"}},
      {"MYDIST_PS_PIECE_KB", {"3", "16385"}},
      {"MYDIST_PS_IN_FLIGHT_MB", {"0", "1025"}},
      {"MYDIST_PS_THREADS", {"-1", "1025"}},
      {"MYDIST_NCCL_LIBRARY", {std::string(4096, 'p')}},
      {"MYDIST_LOG_LEVEL", {"verbose"}},
      {"MYDIST_ALGORITHM", {"a b"}},
      {"MYDIST_PLUGINS", {"a.so:"}},
      {"MYDIST_HOST_ID", {std::string(256, 'h')}},
  };
  for (const auto& [variable, values] : bad_values) {
    for (const std::string& value : values) ExpectRefused(variable, value);
  }
}

TEST(ConfigTest, FromEnvReadsTheEnvironment) {
  ASSERT_EQ(setenv("MYDIST_CACHE_CAPACITY", "77", 1), 0);
  EXPECT_EQ(Config::FromEnv().value().cache_capacity, 77);
  ASSERT_EQ(setenv("MYDIST_CACHE_CAPACITY", "abc", 1), 0);
  EXPECT_EQ(Config::FromEnv().status().message(),
            "MYDIST_CACHE_CAPACITY='abc' is not valid: expected an integer from 0 to 1000000");
  ASSERT_EQ(unsetenv("MYDIST_CACHE_CAPACITY"), 0);
  EXPECT_EQ(Config::FromEnv().value().cache_capacity, 1024);
}

TEST(ConfigTest, DigestHoldsWhatMustBeEqualOnAllRanks) {
  EXPECT_EQ(
      Config{}.Digest(),
      "MYDIST_ALGORITHM=auto\nMYDIST_FUSION_THRESHOLD_MB=64\nMYDIST_CACHE_CAPACITY=1024\n"
      "MYDIST_COORDINATOR_RADIX=32\nMYDIST_FREEZE_AFTER=10\nMYDIST_HIERARCHICAL_ALLREDUCE=unset\n"
      "MYDIST_SHARED_MEMORY=1\nMYDIST_BUCKET_SIZE_MB=unset\n"
      "MYDIST_HEARTBEAT_TIMEOUT_SECONDS=10\nMYDIST_CHECK_CONSISTENCY=0\n"
      "MYDIST_CHECK_FINITE=0\n");
  EXPECT_THAT(With("MYDIST_FUSION_THRESHOLD_MB", "0.5").Digest(), HasSubstr("THRESHOLD_MB=0.5\n"));
  EXPECT_THAT(With("MYDIST_BUCKET_SIZE_MB", "0.5").Digest(), HasSubstr("BUCKET_SIZE_MB=0.5\n"));
  EXPECT_THAT(With("MYDIST_CACHE_CAPACITY", "9").Digest(), HasSubstr("CACHE_CAPACITY=9\n"));
  EXPECT_THAT(With("MYDIST_CHECK_CONSISTENCY", "9").Digest(), HasSubstr("CONSISTENCY=9\n"));
  EXPECT_THAT(With("MYDIST_SHARED_MEMORY", "false").Digest(), HasSubstr("SHARED_MEMORY=0\n"));
  EXPECT_THAT(With("MYDIST_FREEZE_AFTER", "9").Digest(), HasSubstr("FREEZE_AFTER=9\n"));
  EXPECT_THAT(With("MYDIST_COORDINATOR_RADIX", "9").Digest(), HasSubstr("COORDINATOR_RADIX=9\n"));
  EXPECT_THAT(With("MYDIST_HIERARCHICAL_ALLREDUCE", "true").Digest(), HasSubstr("ALLREDUCE=1\n"));
  EXPECT_THAT(With("MYDIST_HIERARCHICAL_ALLREDUCE", "0").Digest(), HasSubstr("ALLREDUCE=0\n"));
  // What may differ from rank to rank is not in it.
  for (const auto& [name, value] : Variables{{"MYDIST_LOG_LEVEL", "trace"},
                                             {"MYDIST_HOST_ID", "b"},
                                             {"MYDIST_TIMELINE", "/t"},
                                             {"MYDIST_FLIGHT_RECORDER_DIR", "/t"},
                                             {"MYDIST_NETWORK_INTERFACES", "eth1"},
                                             {"MYDIST_STALL_WARNING_SECONDS", "1"}}) {
    EXPECT_EQ(With(name, value).Digest(), Config{}.Digest()) << name;
  }
}

TEST(ConfigTest, TheMeetingHostComesFromTheLauncher) {
  EXPECT_EQ(ConfigOf({})->meeting_host, "");
  EXPECT_EQ(With("MYDIST_RENDEZVOUS", "10.0.0.7:4711").meeting_host, "10.0.0.7");
  EXPECT_EQ(With("MYDIST_RENDEZVOUS", "[fd00::7]:4711").meeting_host, "fd00::7");
  EXPECT_EQ(With("MYDIST_RENDEZVOUS", "host1").meeting_host, "host1");
  EXPECT_EQ(With("MYDIST_RENDEZVOUS", "").meeting_host, "");
  EXPECT_EQ(With("MASTER_ADDR", "host1").meeting_host, "host1");
  const Variables both = {{"MASTER_ADDR", "host1"}, {"MYDIST_RENDEZVOUS", "host2:1"}};
  EXPECT_EQ(ConfigOf(both)->meeting_host, "host2");
}

TEST(ConfigTest, SomeOfNcclsOwnVariablesAreRead) {
  EXPECT_FALSE(ConfigOf({})->nccl_shares_gpus);
  const auto shares = [](const Variables& variables) {
    return ConfigOf(variables)->nccl_shares_gpus;
  };
  EXPECT_TRUE(shares({{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}, {"NCCL_NVLS_ENABLE", "0"}}));
  EXPECT_FALSE(shares({{"NCCL_MULTI_RANK_GPU_ENABLE", "0"}, {"NCCL_NVLS_ENABLE", "0"}}));
  EXPECT_FALSE(shares({{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}, {"NCCL_NVLS_ENABLE", "1"}}));
  EXPECT_FALSE(With("NCCL_MULTI_RANK_GPU_ENABLE", "1").nccl_shares_gpus);
  EXPECT_FALSE(With("NCCL_NVLS_ENABLE", "0").nccl_shares_gpus);
  EXPECT_FALSE(ConfigOf({})->nccl_blocks);
  EXPECT_TRUE(With("NCCL_COMM_BLOCKING", "1").nccl_blocks);
  EXPECT_FALSE(With("NCCL_COMM_BLOCKING", "0").nccl_blocks);
  EXPECT_EQ(ConfigOf({})->nccl_host_id, "");
  EXPECT_EQ(With("NCCL_HOSTID", "rank3").nccl_host_id, "rank3");
}

TEST(ConfigTest, AFailpointIsForBuildsThatAcceptOne) {
  EXPECT_FALSE(ConfigOf({})->failpoint.has_value());
  EXPECT_FALSE(With("MYDIST_FAILPOINT", "").failpoint.has_value());
  EXPECT_THAT(UnknownVariables({"MYDIST_FAILPOINT"}), ElementsAre());
  const Result<Config> armed = ConfigOf({{"MYDIST_FAILPOINT", "reduce:5:kill"}});
  if (!build_config::kAcceptsFailpoints) {
    EXPECT_THAT(armed.status().message(), HasSubstr("this build accepts no failpoints"));
    return;
  }
  ASSERT_TRUE(armed.ok()) << armed.status().ToString();
  EXPECT_EQ(armed->failpoint->pass, 5);
  const Result<Config> wrong = ConfigOf({{"MYDIST_FAILPOINT", "reduce:5:die"}});
  EXPECT_THAT(wrong.status().message(),
              HasSubstr("MYDIST_FAILPOINT='reduce:5:die' is not valid: expected PLACE:PASS:ACT"));
}

TEST(ConfigTest, MisspeltVariablesAreReported) {
  EXPECT_THAT(
      UnknownVariables({"MYDIST_CACHE_CAPACTIY"}),
      ElementsAre("MYDIST_CACHE_CAPACTIY is set, but mydist has no such setting; did you mean "
                  "MYDIST_CACHE_CAPACITY?"));
  EXPECT_THAT(UnknownVariables({"MYDIST_STALL_WARNING_TIME_SECONDS"}),
              ElementsAre(HasSubstr("did you mean MYDIST_STALL_WARNING_SECONDS?")));
  EXPECT_THAT(UnknownVariables({"MYDIST_FUSION_THRESHOLD", "MYDIST_LOGLEVEL"}),
              ElementsAre(HasSubstr("did you mean MYDIST_FUSION_THRESHOLD_MB?"),
                          HasSubstr("did you mean MYDIST_LOG_LEVEL?")));
}

TEST(ConfigTest, VariablesThatResembleNoSettingAreReported) {
  EXPECT_THAT(UnknownVariables({"MYDIST_SOMETHING_ELSE_ENTIRELY"}),
              ElementsAre("MYDIST_SOMETHING_ELSE_ENTIRELY is set, but mydist has no such setting"));
}

TEST(ConfigTest, RemovedVariablesAreReportedAndIgnored) {
  EXPECT_THAT(UnknownVariables({"MYDIST_GPU_IPC", "MYDIST_CUDA_AWARE_MPI"}),
              ElementsAre("MYDIST_GPU_IPC is set but has been removed: tensors on GPUs are reduced "
                          "over NCCL or through host memory",
                          HasSubstr("MYDIST_CUDA_AWARE_MPI is set but has been removed: ")));
  const Result<Config> config = ConfigOf({{"MYDIST_GPU_IPC", "no such value"}});
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(Fields(*config), Fields(Config{}));
}

TEST(ConfigTest, KnownAndForeignVariablesAreNotReported) {
  std::vector<std::string> names = {"PATH", "", "OTHER_CACHE_CAPACTIY"};
  std::istringstream of_ours(
      "RANK SIZE JOB_ID LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE JOB_KEY_FD JOB_PARENT "
      "RENDEZVOUS WITH_MPI UNITY PYTHON");
  for (std::string name; of_ours >> name;) names.push_back("MYDIST_" + name);
  for (const Knob& knob : Knobs()) names.push_back(knob.variable);
  EXPECT_THAT(UnknownVariables(names), ElementsAre());
}

TEST(ConfigTest, MisspeltVariablesOfTheProcessAreFound) {
  ASSERT_EQ(setenv("MYDIST_CONTROLER", "mpi", 1), 0);
  EXPECT_THAT(UnknownVariables(), ElementsAre(HasSubstr("did you mean MYDIST_CONTROLLER?")));
  ASSERT_EQ(setenv("RANK", "1", 1), 0);
  EXPECT_THAT(UnknownVariables(), ElementsAre());
  ASSERT_EQ(setenv("RANK", "0", 1), 0);
  EXPECT_THAT(UnknownVariables(), ElementsAre(HasSubstr("MYDIST_CONTROLER")));
  ASSERT_EQ(setenv("MYDIST_FAILURE_TAG", "tag", 1), 0);
  EXPECT_THAT(UnknownVariables(), ElementsAre());
  ASSERT_EQ(setenv("MYDIST_PLUGINS", "mine.so", 1), 0);
  EXPECT_THAT(UnknownVariables(), ElementsAre(HasSubstr("MYDIST_CONTROLER")));
  for (const char* name : {"MYDIST_CONTROLER", "RANK", "MYDIST_FAILURE_TAG", "MYDIST_PLUGINS"}) {
    ASSERT_EQ(unsetenv(name), 0);
  }
  EXPECT_THAT(UnknownVariables(), ElementsAre());
}

}  // namespace
}  // namespace mydist
