#include "base/call_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace mydist {
namespace {

constexpr std::string_view kMark = ".noname.";
constexpr size_t kMaxDigits = 18;  // They fit into 64 bits.

}  // namespace

std::string_view CallDigits(std::string_view name) {
  const size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos) return {};
  const std::string_view rest = name.substr(mark + kMark.size());
  const auto end =
      std::find_if(rest.begin(), rest.end(), [](char c) { return c < '0' || c > '9'; });
  const auto count = static_cast<size_t>(end - rest.begin());
  // Written back it has to be the same text.
  const bool is_plain = count == 1 || (count > 1 && count <= kMaxDigits && rest[0] != '0');
  return is_plain ? rest.substr(0, count) : std::string_view();
}

std::string WithoutCallDigits(std::string_view name) {
  const std::string_view digits = CallDigits(name);
  if (digits.empty()) return std::string(name);
  const auto begin = static_cast<size_t>(digits.data() - name.data());
  // With the dot before them.
  return std::string(name.substr(0, begin - 1)).append(name.substr(begin + digits.size()));
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // Distances of a's front to every front of b.
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace mydist
