#include "config/value_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace mydist::value_text {
namespace {

template <typename T>
std::optional<T> Whole(std::string_view text, T low, T high) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  // Written so that NaN is refused as well.
  if (!(value >= low && value <= high)) return std::nullopt;
  return value;
}

std::string_view WithoutSpaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

bool IsInterfaceName(std::string_view name) {
  return !name.empty() && name.size() < 16 && std::all_of(name.begin(), name.end(), [](char c) {
    return c > ' ' && c <= '~' && c != '/';
  });
}

}  // namespace

std::optional<int64_t> Integer(std::string_view text, int64_t low, int64_t high) {
  return Whole<int64_t>(text, low, high);
}

std::optional<double> Number(std::string_view text, double low, double high) {
  return Whole<double>(text, low, high);
}

std::optional<std::chrono::milliseconds> Seconds(std::string_view text, double low, double high) {
  const std::optional<double> seconds = Number(text, low, high);
  if (!seconds) return std::nullopt;
  const int64_t count = std::llround(*seconds * 1000);
  return std::chrono::milliseconds(*seconds > 0 ? std::max<int64_t>(count, 1) : count);
}

std::optional<bool> Switch(std::string_view text) {
  if (text == "1" || text == "true") return true;
  if (text == "0" || text == "false") return false;
  return std::nullopt;
}

std::optional<std::vector<std::string>> InterfaceNames(std::string_view text) {
  std::vector<std::string> names;
  for (bool is_last = false; !is_last;) {
    const size_t comma = text.find(',');
    const std::string_view name = WithoutSpaces(text.substr(0, comma));
    if (!IsInterfaceName(name)) return std::nullopt;
    names.emplace_back(name);
    is_last = comma == std::string_view::npos;
    if (!is_last) text.remove_prefix(comma + 1);
  }
  return names;
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

}  // namespace mydist::value_text
