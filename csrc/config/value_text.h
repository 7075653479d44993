// ValueText: the values a variable can have, from their text. Pure. Strict: the whole text must be
// the value, without spaces around it; nothing when it is not.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mydist::value_text {

std::optional<int64_t> Integer(std::string_view text, int64_t low, int64_t high);
// A decimal number, with fraction and exponent if any; never infinite, never NaN.
std::optional<double> Number(std::string_view text, double low, double high);
// Seconds, rounded to milliseconds; what is above 0 stays above 0.
std::optional<std::chrono::milliseconds> Seconds(std::string_view text, double low, double high);
// 0, 1, true or false.
std::optional<bool> Switch(std::string_view text);
// Comma-separated names of network interfaces as Linux allows them: 1 to 15 printable characters
// without '/'. Spaces around a name are ignored.
std::optional<std::vector<std::string>> InterfaceNames(std::string_view text);

// Insertions, deletions and replacements that make one text the other.
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace mydist::value_text
