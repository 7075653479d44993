// Whether ranks use NCCL: what each says of itself, and what all make of it.
#include "planner/device_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace mydist {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

DeviceTraits Rank(int number) {
  return {.nccl_version = 22803, .gpu = "0000:0" + std::to_string(number) + ":00.0", .host = "a"};
}

// Of ranks 3, 4, … of a job.
NcclChoice Choose(const std::vector<DeviceTraits>& traits) {
  std::vector<DeviceRecord> records;
  std::vector<int> ranks;
  for (const DeviceTraits& each : traits) {
    ranks.push_back(3 + static_cast<int>(records.size()));
    records.push_back(MakeDeviceRecord(each));
  }
  return ChooseNccl(records, ranks);
}

TEST(DeviceAgreement, AllHaveItAndAGpuEach) {
  EXPECT_EQ(Choose({Rank(1), Rank(2), Rank(3)}).version, 22803);
  EXPECT_EQ(Choose({Rank(1)}).version, 22803);
}

TEST(DeviceAgreement, ARankWithoutNcclIsNamed) {
  DeviceTraits lacking = Rank(2);
  lacking.nccl_version = 0;
  lacking.why_not = "no libnccl.so.2";
  const NcclChoice choice = Choose({Rank(1), lacking});
  EXPECT_EQ(choice.version, 0);
  EXPECT_THAT(choice.why, AllOf(HasSubstr("rank 4"), HasSubstr("no libnccl.so.2")));
  EXPECT_EQ(Choose({lacking, lacking}).why, "no libnccl.so.2");
}

TEST(DeviceAgreement, AnotherVersionIsNamed) {
  DeviceTraits newer = Rank(3);
  newer.nccl_version = 23203;
  const NcclChoice choice = Choose({Rank(1), Rank(2), newer});
  EXPECT_EQ(choice.version, 0);
  EXPECT_THAT(choice.why, AllOf(HasSubstr("rank 3 has NCCL 2.28.3"), HasSubstr("rank 5 has 2.32.3"),
                                HasSubstr("install the same")));
}

TEST(DeviceAgreement, RanksThatShareAGpuAreNamed) {
  const NcclChoice choice = Choose({Rank(1), Rank(2), Rank(1)});
  EXPECT_EQ(choice.version, 0);
  EXPECT_THAT(choice.why, AllOf(HasSubstr("rank 3 and rank 5"), HasSubstr("0000:01:00.0"),
                                HasSubstr("NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL_NVLS_ENABLE=0 "
                                          "on all ranks")));
}

TEST(DeviceAgreement, TheSameBusOfAnotherHostIsAnotherGpu) {
  DeviceTraits elsewhere = Rank(1);
  elsewhere.host = "b";
  EXPECT_EQ(Choose({Rank(1), elsewhere}).version, 22803);
}

TEST(DeviceAgreement, NcclMayBeToldToShare) {
  const auto sharing = [](int version, bool asked) {
    DeviceTraits traits = Rank(1);
    traits.nccl_version = version;
    traits.is_asked_to_share = asked;
    return traits;
  };
  EXPECT_EQ(Choose({sharing(23003, true), sharing(23003, true)}).version, 23003);
  EXPECT_EQ(Choose({sharing(23003, true), sharing(23003, false)}).version, 0);
  EXPECT_EQ(Choose({sharing(23002, true), sharing(23002, true)}).version, 0);
  EXPECT_EQ(Choose({sharing(23003, true), sharing(23003, true), sharing(23003, false)}).version, 0);
}

TEST(DeviceAgreement, LongTextsAreCutAndEnd) {
  DeviceTraits lacking;
  lacking.gpu = lacking.host = lacking.why_not = std::string(1000, 'x');
  const DeviceRecord record = MakeDeviceRecord(lacking);
  EXPECT_EQ(record.gpu.back(), '\0');
  EXPECT_EQ(record.host.back(), '\0');
  EXPECT_EQ(ChooseNccl(std::vector{record, record}, std::vector{0, 1}).why, std::string(311, 'x'));
}

// As it might come from a peer that has gone mad.
TEST(DeviceAgreement, ATextWithoutAnEndIsReadToItsField) {
  DeviceRecord record;
  record.why_not.fill('y');
  EXPECT_EQ(ChooseNccl(std::vector{record}, std::vector{0}).why, std::string(312, 'y'));
}

}  // namespace
}  // namespace mydist
