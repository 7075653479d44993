#include "algorithms/device/device_link.h"

#include <array>
#include <cstdint>
#include <vector>

#include "base/fixed_text.h"

namespace mydist {
namespace {

// Travels as it lies in memory.
struct Outcome {
  int32_t has_failed = 0;
  std::array<char, 252> why{};
};
static_assert(sizeof(Outcome) == 256);

}  // namespace

Result<std::string> FirstFailure(const Status& outcome, Collectives& exchange, int size) {
  Outcome own{.has_failed = outcome.ok() ? 0 : 1};
  PutText(outcome.message(), own.why);
  std::vector<Outcome> all(static_cast<size_t>(size));
  const std::vector<int64_t> byte_counts(all.size(), sizeof(Outcome));
  MYDIST_RETURN_IF_ERROR(exchange.Allgather(&own, all.data(), byte_counts));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].has_failed == 0) continue;
    return "its rank " + std::to_string(rank) + ": " + TextOf(all[rank].why);
  }
  return std::string();
}

}  // namespace mydist
