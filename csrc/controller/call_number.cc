#include "controller/call_number.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

namespace mydist {
namespace {

constexpr std::string_view kMark = ".noname.";
constexpr size_t kMaxDigits = 18;  // They fit.

std::string_view DigitsIn(std::string_view name) {
  const size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos) return {};
  const std::string_view rest = name.substr(mark + kMark.size());
  const auto end = std::find_if_not(
      rest.begin(), rest.end(), [](char c) { return std::isdigit(static_cast<unsigned char>(c)); });
  const auto count = static_cast<size_t>(end - rest.begin());
  // Written back it has to be the same text.
  const bool is_plain = count == 1 || (count > 1 && count <= kMaxDigits && rest[0] != '0');
  return is_plain ? rest.substr(0, count) : std::string_view();
}

void Replace(std::string& name, uint64_t number) {
  const std::string_view digits = DigitsIn(name);
  if (digits.empty()) return;
  name.replace(static_cast<size_t>(digits.data() - name.data()), digits.size(),
               std::to_string(number));
}

}  // namespace

std::optional<uint64_t> CallNumber(const Request& request) {
  const std::string_view digits = DigitsIn(request.name);
  const std::string_view of_group = DigitsIn(request.group);
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
