#include "planner/bucket_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace mydist {
namespace {

constexpr int64_t kLeastBytes = int64_t{256} << 10;
constexpr int64_t kUnmeasuredBytes = int64_t{8} << 20;
// The first bucket is this much smaller.
constexpr int64_t kFirstDivisor = 4;

int64_t BestBytes(int64_t total_bytes, const PathCosts& costs) {
  if (!costs.measured()) return kUnmeasuredBytes;
  const double square =
      static_cast<double>(total_bytes) * costs.latency.count() / costs.seconds_per_byte;
  const double best = std::clamp(std::sqrt(square), static_cast<double>(kLeastBytes), 0x1p62);
  return static_cast<int64_t>(best);
}

struct OpenBucket {
  size_t place = 0;  // In the plan.
  int64_t room_bytes = 0;
};

}  // namespace

BucketSizes ChooseBucketSizes(int64_t total_bytes, const PathCosts& costs,
                              const BucketLimits& limits) {
  const int64_t wanted_bytes = limits.wanted_bytes.value_or(BestBytes(total_bytes, costs));
  const int64_t bytes = std::min(wanted_bytes, limits.most_bytes);
  return {.first_bytes = bytes / kFirstDivisor, .bytes = bytes};
}

std::vector<std::vector<size_t>> PlanBuckets(std::span<const BucketMember> members,
                                             const BucketSizes& sizes) {
  using Key = std::tuple<std::string_view, DataType>;
  std::vector<std::vector<size_t>> plan;
  std::map<Key, OpenBucket> open;
  for (size_t i = 0; i < members.size(); ++i) {
    const BucketMember& member = members[i];
    const bool is_grouped = !member.group.empty();
    const Key key{member.group, is_grouped ? DataType{} : member.dtype};
    auto found = open.find(key);
    const bool fits =
        found != open.end() && (is_grouped || member.bytes <= found->second.room_bytes);
    if (!fits) {
      const int64_t room_bytes = plan.empty() ? sizes.first_bytes : sizes.bytes;
      found = open.insert_or_assign(key, OpenBucket{plan.size(), room_bytes}).first;
      plan.emplace_back();
    }
    OpenBucket& bucket = found->second;
    plan[bucket.place].push_back(i);
    bucket.room_bytes -= std::max<int64_t>(1, member.bytes);
  }
  return plan;
}

}  // namespace mydist
