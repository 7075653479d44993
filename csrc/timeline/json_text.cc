#include "timeline/json_text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

namespace mydist {
namespace {

constexpr std::string_view kReplacement = "\\ufffd";
constexpr std::string_view kEllipsis = "\\u2026";

// Bytes of the well-formed UTF-8 character at the front of `text`; 0 when there is none. Refuses
// overlong forms, surrogates and everything above U+10FFFF (RFC 3629, section 4).
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (first == 0xE0 && byte(1) < 0xA0) return 0;
    if (first == 0xED && byte(1) > 0x9F) return 0;
    return continues(1) && continues(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (first == 0xF0 && byte(1) < 0x90) return 0;
    if (first == 0xF4 && byte(1) > 0x8F) return 0;
    return continues(1) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

// Whether it stands for itself in a JSON string.
bool IsPlain(char c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; }

bool IsPlainAndFits(std::string_view text, size_t max_bytes) {
  return text.size() + 2 <= max_bytes && std::all_of(text.begin(), text.end(), IsPlain);
}

std::string Escaped(std::string_view character) {
  const auto byte = static_cast<uint8_t>(character[0]);
  if (byte == '"' || byte == '\\') return std::string("\\") + character[0];
  if (byte >= 0x20 && byte != 0x7F) return std::string(character);
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "\\u%04x", byte);
  return text.data();
}

}  // namespace

std::string JsonText(std::string_view text, size_t max_bytes) {
  std::string quoted = "\"";
  if (IsPlainAndFits(text, max_bytes)) return quoted.append(text).append("\"");
  // Room that must remain so that the ellipsis and the closing quote still fit.
  const size_t reserve_bytes = kEllipsis.size() + 1;
  size_t cut_bytes = quoted.size();  // Where to cut if the whole does not fit.
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    quoted += length == 0 ? std::string(kReplacement) : Escaped(text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
    if (quoted.size() + reserve_bytes <= max_bytes) cut_bytes = quoted.size();
    if (quoted.size() + 1 > max_bytes) {
      quoted.resize(cut_bytes);
      quoted += kEllipsis;
      break;
    }
  }
  return quoted + "\"";
}

void AppendJsonText(std::string_view text, size_t max_bytes, std::string& out) {
  if (IsPlainAndFits(text, max_bytes)) {  // As nearly all names are.
    out.append("\"").append(text).append("\"");
  } else {
    out += JsonText(text, max_bytes);
  }
}

}  // namespace mydist
