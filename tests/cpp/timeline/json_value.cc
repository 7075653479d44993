#include "timeline/json_value.h"

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace mydist::testing {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::optional<JsonValue> Document() {
    std::optional<JsonValue> value = Value(0);
    SkipSpace();
    if (position_ != text_.size()) return std::nullopt;
    return value;
  }

 private:
  char Peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }
  bool Take(char wanted) {
    if (position_ >= text_.size() || text_[position_] != wanted) return false;
    ++position_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    if (text_.substr(position_, word.size()) != word) return false;
    position_ += word.size();
    return true;
  }
  void SkipSpace() {
    while (Take(' ') || Take('\n') || Take('\r') || Take('\t')) {
    }
  }
  bool TakeDigits() {
    const size_t start = position_;
    while (Peek() >= '0' && Peek() <= '9') ++position_;
    return position_ > start;
  }

  std::optional<JsonValue> Value(int depth) {
    SkipSpace();
    if (depth > 100) return std::nullopt;
    switch (Peek()) {
      case '{':
        return Object(depth);
      case '[':
        return Array(depth);
      case '"':
        return Text();
      default:
        return Scalar();
    }
  }

  std::optional<JsonValue> Scalar() {
    JsonValue value;
    if (TakeWord("null")) return value;
    value.kind = JsonValue::Kind::kBool;
    if (TakeWord("false")) return value;
    value.number = 1;
    if (TakeWord("true")) return value;
    return Number();
  }

  std::optional<JsonValue> Number() {
    const size_t start = position_;
    Take('-');
    if (!Take('0') && !TakeDigits()) return std::nullopt;
    if (Take('.') && !TakeDigits()) return std::nullopt;
    if (Take('e') || Take('E')) {
      if (!Take('+')) Take('-');
      if (!TakeDigits()) return std::nullopt;
    }
    JsonValue value;
    value.kind = JsonValue::Kind::kNumber;
    value.number =
        std::strtod(std::string(text_.substr(start, position_ - start)).c_str(), nullptr);
    return value;
  }

  std::optional<JsonValue> Array(int depth) {
    JsonValue value;
    value.kind = JsonValue::Kind::kArray;
    Take('[');
    SkipSpace();
    if (Take(']')) return value;
    do {
      std::optional<JsonValue> item = Value(depth + 1);
      if (!item) return std::nullopt;
      value.items.push_back(std::move(*item));
      SkipSpace();
    } while (Take(','));
    if (!Take(']')) return std::nullopt;
    return value;
  }

  std::optional<JsonValue> Object(int depth) {
    JsonValue value;
    value.kind = JsonValue::Kind::kObject;
    Take('{');
    SkipSpace();
    if (Take('}')) return value;
    do {
      SkipSpace();
      std::optional<JsonValue> name = Text();
      SkipSpace();
      if (!name || !Take(':')) return std::nullopt;
      std::optional<JsonValue> item = Value(depth + 1);
      // A name twice is allowed by the letter, but we never mean it.
      if (!item || !value.fields.emplace(name->text, std::move(*item)).second) return std::nullopt;
      SkipSpace();
    } while (Take(','));
    if (!Take('}')) return std::nullopt;
    return value;
  }

  std::optional<JsonValue> Text() {
    JsonValue value;
    value.kind = JsonValue::Kind::kText;
    if (!Take('"')) return std::nullopt;
    while (!Take('"')) {
      if (position_ >= text_.size()) return std::nullopt;
      if (!(Take('\\') ? Escape(value.text) : Utf8(value.text))) return std::nullopt;
    }
    return value;
  }

  bool Escape(std::string& out) {
    constexpr std::string_view kShort = "\"\\/bfnrt";
    constexpr std::string_view kMeaning = "\"\\/\b\f\n\r\t";
    if (const size_t i = kShort.find(Peek()); i != std::string_view::npos && Peek() != '\0') {
      out += kMeaning[i];
      ++position_;
      return true;
    }
    if (!Take('u') || position_ + 4 > text_.size()) return false;
    const std::string digits(text_.substr(position_, 4));
    if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return false;
    position_ += 4;
    AppendUtf8(static_cast<uint32_t>(std::stoul(digits, nullptr, 16)), out);
    return true;
  }

  // Takes one character; decodes it and encodes it again, which only well-formed ones survive.
  bool Utf8(std::string& out) {
    const auto first = static_cast<uint8_t>(Peek());
    if (first < 0x20) return false;
    const size_t length = first < 0x80 ? 1 : first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (position_ + length > text_.size()) return false;
    uint32_t code = length == 1 ? first : first & (0xFFU >> (length + 1));
    for (size_t i = 1; i < length; ++i) {
      code = (code << 6) | (static_cast<uint8_t>(text_[position_ + i]) & 0x3FU);
    }
    std::string again;
    AppendUtf8(code, again);
    if (again != text_.substr(position_, length)) return false;
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
    out += again;
    position_ += length;
    return true;
  }

  static void AppendUtf8(uint32_t code, std::string& out) {
    if (code < 0x80) {
      out += static_cast<char>(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    out += static_cast<char>(((0xFF00U >> (more + 1)) & 0xFFU) | (code >> (6 * more)));
    for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
  }

  std::string_view text_;
  size_t position_ = 0;
};

}  // namespace

const JsonValue& JsonValue::operator[](const std::string& name) const {
  static const JsonValue kMissing;
  const auto it = fields.find(name);
  return it == fields.end() ? kMissing : it->second;
}

std::optional<JsonValue> ParseJson(std::string_view text) { return Parser(text).Document(); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "mydist-test-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) std::abort();
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace mydist::testing
