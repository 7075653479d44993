// The fake device's kernel gives the numbers of the host.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "fakes/device_bench.h"
#include "kernels/conversion.h"
#include "kernels/element.h"

namespace mydist::testing {
namespace {

class FakeConvertTest : public DevicePaceTest {};
INSTANTIATE_TEST_SUITE_P(Paces, FakeConvertTest, kEveryPace, NameOfPace);

// Numbers of `dtype` on the device, converted and copied back.
template <typename To, typename From>
std::vector<To> Converted(DeviceBench& bench, const std::vector<From>& numbers,
                          const Conversion& conversion) {
  const auto from_bytes = static_cast<int64_t>(numbers.size() * sizeof(From));
  const auto to_bytes = static_cast<int64_t>(numbers.size() * sizeof(To));
  const auto count = static_cast<int64_t>(numbers.size());
  ExpectFine(bench.device.HostWrites(bench.pinned.get(), from_bytes, "numbers"));
  std::memcpy(bench.pinned.get(), numbers.data(), static_cast<size_t>(from_bytes));
  ExpectFine(bench.ToDevice(bench.work));
  // In one launch: odd ones and even ones, and nothing.
  const ConvertSegment segments[] = {
      {bench.on_device.get(), bench.on_device_too.get(), count / 3},
      {nullptr, nullptr, 0},
      {bench.on_device.get() + count / 3 * static_cast<int64_t>(sizeof(From)),
       bench.on_device_too.get() + count / 3 * static_cast<int64_t>(sizeof(To)),
       count - count / 3}};
  ExpectFine(bench.device.Convert(segments, conversion, bench.work));
  ExpectFine(
      bench.device.Copy(bench.pinned_too.get(), bench.on_device_too.get(), to_bytes, bench.work));
  ExpectFine(bench.device.Block(*bench.Record(bench.work)));
  ExpectFine(bench.device.HostReads(bench.pinned_too.get(), to_bytes, "result"));
  std::vector<To> result(numbers.size());
  std::memcpy(result.data(), bench.pinned_too.get(), static_cast<size_t>(to_bytes));
  return result;
}

TEST_P(FakeConvertTest, ConvertsAsTheHostDoes) {
  DeviceBench bench(GetParam());
  constexpr Factor kThird{.multiplier = 0.7, .divisor = 3};
  std::vector<float> numbers;
  for (int i = 0; i < 101; ++i) numbers.push_back(0.37F * static_cast<float>(i * i) - 11.0F);
  std::vector<float> scaled = numbers;
  ScaleElements(numbers.data(), scaled.data(), static_cast<int64_t>(numbers.size()), kThird);
  std::vector<uint16_t> half(numbers.size());
  std::vector<uint16_t> brain(numbers.size());
  std::vector<float> from_brain(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    half[i] = FloatToHalf(numbers[i]);
    brain[i] = FloatToBfloat16(scaled[i]);
    from_brain[i] = Bfloat16ToFloat(brain[i]);
  }
  EXPECT_EQ(Converted<float>(bench, numbers, {.factor = kThird}), scaled);
  EXPECT_EQ(Converted<float>(bench, numbers, {}), numbers);
  EXPECT_EQ(Converted<uint16_t>(bench, numbers, {.to = DataType::kFloat16}), half);
  EXPECT_EQ(Converted<uint16_t>(bench, numbers, {.to = DataType::kBfloat16, .factor = kThird}),
            brain);
  EXPECT_EQ(Converted<float>(bench, brain, {.from = DataType::kBfloat16}), from_brain);
  const std::vector<int32_t> integers = {-7, 0, 7, 100, 2000000001};
  EXPECT_EQ(Converted<int32_t>(
                bench, integers,
                {.from = DataType::kInt32, .to = DataType::kInt32, .factor = {.multiplier = 0.5}}),
            (std::vector<int32_t>{-3, 0, 3, 50, 1000000000}));
  EXPECT_EQ(bench.device.counts().launches, 6);
}

}  // namespace
}  // namespace mydist::testing
