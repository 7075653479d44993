#include "controller/messages/response.h"

#include <string_view>

#include "base/call_name.h"

namespace mydist {
namespace {

void Replace(std::string& name, uint64_t number) {
  const std::string_view digits = CallDigits(name);
  if (digits.empty()) return;
  name.replace(static_cast<size_t>(digits.data() - name.data()), digits.size(),
               std::to_string(number));
}

}  // namespace

std::optional<uint64_t> CallNumber(const Request& request) {
  const std::string_view digits = CallDigits(request.name);
  const std::string_view of_group = CallDigits(request.group);
  if (digits.empty() || (!of_group.empty() && of_group != digits)) return std::nullopt;
  return std::stoull(std::string(digits));
}

Agreement WithCallNumber(Agreement agreement, uint64_t number) {
  if (!CallNumber(agreement.request)) return agreement;
  Replace(agreement.request.name, number);
  Replace(agreement.request.group, number);
  return agreement;
}

}  // namespace mydist
