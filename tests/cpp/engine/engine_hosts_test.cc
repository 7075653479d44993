// Engines on several hosts: which tensors pass between hosts, and how many bytes of them.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "engine/engine_job.h"

namespace mydist {
namespace {

const std::vector<std::string> kTwoByTwo = {"a", "a", "b", "b"};

Config ConfigWith(bool shared_memory, std::optional<bool> hierarchical = std::nullopt) {
  Config config;
  config.shared_memory = shared_memory;
  config.hierarchical_allreduce = hierarchical;
  return config;
}

void AllreduceOnce(EngineRank& rank, size_t count) {
  std::vector<float> data(count, static_cast<float>(rank.rank() + 1));
  const Status status = rank.Run(Allreduce("x", &data));
  ASSERT_TRUE(status.ok()) << status.ToString();
  const int size = rank.size();
  EXPECT_TRUE(data == std::vector<float>(count, static_cast<float>(size * (size + 1) / 2)));
}

// Counts are read when the engine's thread has ended, so they are complete.
std::vector<int64_t> BytesSentByHost(const JobOptions& options, size_t count) {
  EngineJob job(static_cast<int>(options.hosts.size()), options);
  job.OnEveryRank([&](EngineRank& rank) { AllreduceOnce(rank, count); });
  job.Shutdown();
  std::vector<int64_t> bytes(2, 0);
  for (size_t r = 0; r < options.hosts.size(); ++r) {
    bytes[options.hosts[r] == "a" ? 0 : 1] +=
        job.rank(static_cast<int>(r)).engine->stats().inter_host_bytes_sent;
  }
  return bytes;
}

using Bytes64 = std::vector<int64_t>;

TEST(EngineHostsTest, HostsReduceFirstWhenTheyShareMemory) {
  const JobOptions options{.config = ConfigWith(true), .hosts = kTwoByTwo, .shares_memory = true};
  EXPECT_EQ(BytesSentByHost(options, 1), Bytes64(2, 4));
  EXPECT_EQ(BytesSentByHost(options, 1 << 18), Bytes64(2, 1 << 20));
}

TEST(EngineHostsTest, UnevenHosts) {
  const JobOptions options{
      .config = ConfigWith(true), .hosts = {"a", "b", "b", "a", "b"}, .shares_memory = true};
  EXPECT_EQ(BytesSentByHost(options, 100003), Bytes64(2, 400012));
}

// What each rank says it chose about `topic`; empty: nothing.
std::vector<std::string> ChoicesOf(const std::string& topic, const JobOptions& options) {
  EngineJob job(static_cast<int>(options.hosts.size()), options);
  std::vector<std::string> choices;
  for (size_t r = 0; r < options.hosts.size(); ++r) {
    std::string& choice = choices.emplace_back();
    for (const Fact& fact : job.rank(static_cast<int>(r)).engine->Explain()) {
      if (fact.topic == topic) choice = fact.choice;
    }
  }
  job.Shutdown();
  return choices;
}

TEST(EngineHostsTest, ExplainsTheHierarchyOnEveryRank) {
  const JobOptions uneven{
      .config = ConfigWith(true), .hosts = {"a", "b", "b"}, .shares_memory = true};
  EXPECT_EQ(ChoicesOf("hierarchy", uneven),
            std::vector<std::string>(3, "inside each host first, then between hosts"));
  const std::string shared = "shared memory inside this host";
  EXPECT_EQ(ChoicesOf("data path", uneven),
            (std::vector<std::string>{"the backend, between all ranks", shared, shared}));
  const JobOptions flat{.config = ConfigWith(true), .hosts = {"a", "b"}};
  EXPECT_EQ(ChoicesOf("hierarchy", flat), std::vector<std::string>(2, "all ranks at once"));
}

// Four ranks at once: each sends 2 n / 4 to each of the two on the other host.
TEST(EngineHostsTest, SettingsDecide) {
  constexpr size_t kCount = 1 << 18;
  const Bytes64 flat(2, 2 << 20);
  const Bytes64 hosts_first(2, 1 << 20);
  const auto bytes_with = [&](const Config& config) {
    return BytesSentByHost({.config = config, .hosts = kTwoByTwo}, kCount);
  };
  EXPECT_EQ(bytes_with(ConfigWith(false)), flat);
  EXPECT_EQ(bytes_with(ConfigWith(true, false)), flat);
  // Shared memory was wanted, but there is none: still the same order of the sum as where there is.
  EXPECT_EQ(bytes_with(ConfigWith(true)), hosts_first);
  EXPECT_EQ(bytes_with(ConfigWith(false, true)), hosts_first);
}

TEST(EngineHostsTest, ProcessSetsHaveHostsOfTheirOwn) {
  // One host; one rank of each host; two and one.
  const std::array<std::vector<int32_t>, 3> members = {{{0, 1}, {0, 2}, {1, 2, 3}}};
  EngineJob job(4, {.config = ConfigWith(true), .hosts = kTwoByTwo, .shares_memory = true});
  job.OnEveryRank([&](EngineRank& rank) {
    for (const std::vector<int32_t>& ranks : members) {
      ProcessSetId id = 0;
      ASSERT_TRUE(AddSet(rank, ranks, &id).ok());
      if (std::count(ranks.begin(), ranks.end(), rank.rank()) == 0) continue;
      for (const size_t count : {3, 50000}) {
        std::vector<float> data(count, static_cast<float>(rank.rank()));
        Submission submission = Allreduce("x", &data);
        submission.request.process_set = id;
        const Status status = rank.Run(std::move(submission));
        ASSERT_TRUE(status.ok()) << status.ToString();
        const int sum = std::accumulate(ranks.begin(), ranks.end(), 0);
        EXPECT_TRUE(data == std::vector<float>(count, static_cast<float>(sum)));
      }
    }
  });
  job.Shutdown();
  const auto sent = [&](int rank) { return job.rank(rank).engine->stats().inter_host_bytes_sent; };
  constexpr int64_t kBytes = 4 * 50003;
  EXPECT_EQ(sent(0), kBytes);                // In the second set only.
  EXPECT_EQ(sent(1), kBytes);                // In the third: it is alone on its host.
  EXPECT_EQ(sent(2) + sent(3), 2 * kBytes);  // In both; the partner is the first of them.
  EXPECT_EQ(sent(3), 0);
}

}  // namespace
}  // namespace mydist
