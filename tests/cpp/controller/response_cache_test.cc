#include "controller/response_cache.h"

#include <gtest/gtest.h>

namespace mydist {
namespace {

std::shared_ptr<const Agreement> Named(const std::string& name) {
  Agreement agreement;
  agreement.request.name = name;
  return std::make_shared<const Agreement>(std::move(agreement));
}

uint32_t Insert(ResponseCache& cache, const std::string& name, uint64_t position) {
  const auto slot = cache.SlotFor(name);
  cache.Assign(*slot, Named(name), position);
  return *slot;
}

TEST(ResponseCacheTest, TakesTheLowestFreeSlot) {
  ResponseCache cache(3);
  EXPECT_EQ(Insert(cache, "a", 1), 0u);
  EXPECT_EQ(Insert(cache, "b", 2), 1u);
  EXPECT_EQ(Insert(cache, "c", 3), 2u);
  cache.Free(1, 4);
  cache.Free(0, 5);
  EXPECT_EQ(Insert(cache, "d", 6), 0u);
  EXPECT_EQ(Insert(cache, "e", 7), 1u);
  EXPECT_EQ(cache.Find("b"), std::nullopt);
  EXPECT_EQ(cache.Find("e"), 1u);
}

TEST(ResponseCacheTest, EvictsTheLeastRecentlyTouched) {
  ResponseCache cache(3);
  for (const char* name : {"a", "b", "c"}) Insert(cache, name, 1);
  cache.Touch(0);
  EXPECT_EQ(Insert(cache, "d", 2), 1u);  // b
  cache.Touch(2);
  EXPECT_EQ(Insert(cache, "e", 3), 0u);  // a
  EXPECT_EQ(cache.Find("c"), 2u);
  EXPECT_EQ(cache.Find("a"), std::nullopt);
}

TEST(ResponseCacheTest, AKnownNameKeepsItsSlot) {
  ResponseCache cache(2);
  Insert(cache, "a", 1);
  Insert(cache, "b", 2);
  const auto renewed = Named("a");
  EXPECT_EQ(cache.SlotFor("a"), 0u);
  cache.Assign(0, renewed, 3);
  EXPECT_EQ(cache.At(0), renewed);
  EXPECT_EQ(cache.Find("a"), 0u);
  EXPECT_EQ(cache.ChangedAt(0), 3u);
  EXPECT_EQ(cache.ChangedAt(1), 2u);
}

TEST(ResponseCacheTest, FindsAgreementsByWhatTheySay) {
  ResponseCache cache(4);
  Insert(cache, "a", 1);
  Agreement grouped;
  grouped.request.name = "b";
  grouped.request.group = "g";
  cache.Assign(*cache.SlotFor("b"), std::make_shared<const Agreement>(grouped), 2);
  Insert(cache, "c", 3);
  StreamItem error;
  error.name = "c";
  const auto ended = [&error](const Agreement& agreement) {
    return Ends(error, agreement.request);
  };
  EXPECT_EQ(cache.Where(ended), (std::vector<uint32_t>{2}));
  error.groups = {"g"};
  EXPECT_EQ(cache.Where(ended), (std::vector<uint32_t>{1, 2}));
}

}  // namespace
}  // namespace mydist
