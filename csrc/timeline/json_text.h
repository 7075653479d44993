// JsonText: any bytes as a JSON string. Pure.
#pragma once

#include <string>
#include <string_view>

namespace mydist {

// The text in quotes, ASCII only in what is escaped: quotes, backslashes and control characters
// are escaped, bytes that are not UTF-8 become U+FFFD. A text that would take more than
// `max_bytes` (at least 16) is cut between characters and ends in U+2026, an ellipsis.
std::string JsonText(std::string_view text, size_t max_bytes = 1024);
// The same at the end of `out`.
void AppendJsonText(std::string_view text, size_t max_bytes, std::string& out);

}  // namespace mydist
