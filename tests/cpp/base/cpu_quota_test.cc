#include "base/usable_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <filesystem>
#include <fstream>

namespace mydist {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A machine's files, as a process sees them.
class FakeRoot {
 public:
  FakeRoot() { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~FakeRoot() { fs::remove_all(path()); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  std::string path() const { return path_.data(); }
  FakeRoot& With(const std::string& file, const std::string& text) {
    fs::create_directories(fs::path(path() + file).parent_path());
    std::ofstream(path() + file) << text;
    return *this;
  }
  std::vector<double> Cores() const {
    std::vector<double> cores;
    for (const CpuQuota& quota : ReadCpuQuotas(path())) cores.push_back(quota.cores);
    return cores;
  }

 private:
  std::array<char, 32> path_{"/tmp/mydist-quota-XXXXXX"};
};

constexpr char kV2Mount[] = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
constexpr char kV1Mount[] =
    "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

TEST(CpuQuota, IsThatOfEachGroupAround) {
  FakeRoot root;
  root.With("/proc/self/mountinfo", kV2Mount)
      .With("/proc/self/cgroup", "0::/jobs/mine/step\n")
      .With("/sys/fs/cgroup/jobs/cpu.max", "800000 100000\n")
      .With("/sys/fs/cgroup/jobs/mine/cpu.max", "150000 100000\n")
      .With("/sys/fs/cgroup/jobs/mine/step/cpu.max", "max 100000\n");
  EXPECT_THAT(root.Cores(), ElementsAre(1.5, 8));
  root.With("/sys/fs/cgroup/jobs/mine/step/cpu.max", "50000 50000\n");
  EXPECT_THAT(root.Cores(), ElementsAre(1, 1.5, 8));
}

TEST(CpuQuota, NamesGroupsAlikeForAllInThem) {
  FakeRoot root;
  root.With("/proc/self/mountinfo", kV2Mount)
      .With("/proc/self/cgroup", "0::/a/b\n")
      .With("/sys/fs/cgroup/a/cpu.max", "200000 100000\n")
      .With("/sys/fs/cgroup/a/b/cpu.max", "200000 100000\n")
      .With("/sys/fs/cgroup/a/c/cpu.max", "200000 100000\n");
  const std::vector<CpuQuota> first = ReadCpuQuotas(root.path());
  root.With("/proc/self/cgroup", "0::/a/c\n");
  const std::vector<CpuQuota> second = ReadCpuQuotas(root.path());
  ASSERT_EQ(first.size(), 2U);
  ASSERT_EQ(second.size(), 2U);
  EXPECT_NE(first[0].group, second[0].group);
  EXPECT_EQ(first[1], second[1]);
}

TEST(CpuQuota, CountsAGroupOnceHoweverOftenItIsMounted) {
  FakeRoot root;
  root.With("/proc/self/mountinfo", std::string(kV2Mount) + kV2Mount)
      .With("/proc/self/cgroup", "0::/a\n")
      .With("/sys/fs/cgroup/a/cpu.max", "200000 100000\n");
  EXPECT_THAT(root.Cores(), ElementsAre(2));
}

TEST(CpuQuota, OfVersion1IsReadFromItsOwnFiles) {
  FakeRoot root;
  root.With("/proc/self/mountinfo", kV1Mount)
      .With("/proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/docker/x\n0::/\n")
      .With("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "250000\n")
      .With("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  EXPECT_THAT(root.Cores(), ElementsAre(2.5));
  root.With("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
  EXPECT_THAT(root.Cores(), IsEmpty());
}

// Whose own group is mounted, but named as outside.
TEST(CpuQuota, OfAContainerIsAtTheTopOfTheMount) {
  for (const char* group : {"0::/docker/x\n", "0::/\n", "0::/../y\n", ""}) {
    FakeRoot root;
    root.With("/proc/self/mountinfo",
              "30 24 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
        .With("/proc/self/cgroup", group)
        .With("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    EXPECT_THAT(root.Cores(), ElementsAre(2)) << group;
  }
}

TEST(CpuQuota, IsNotThereWithoutGroups) {
  const FakeRoot empty;
  EXPECT_THAT(empty.Cores(), IsEmpty());
  FakeRoot nonsense;
  nonsense.With("/proc/self/mountinfo", "\n- - -\ncgroup2\n" + std::string(kV2Mount))
      .With("/proc/self/cgroup", "::\nx\n0::")
      .With("/sys/fs/cgroup/cpu.max", "-5 0\n");
  EXPECT_THAT(nonsense.Cores(), IsEmpty());
}

}  // namespace
}  // namespace mydist
