// A strict JSON reader for the tests, independent of the code under test: RFC 8259 to the letter,
// including well-formed UTF-8 and no byte after the value but white space.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mydist::testing {

struct JsonValue {
  enum class Kind { kNull, kBool, kNumber, kText, kArray, kObject };
  Kind kind = Kind::kNull;
  double number = 0;  // Also 0 or 1 of a bool.
  std::string text;
  std::vector<JsonValue> items;
  std::map<std::string, JsonValue> fields;

  // A field of an object; a null value when it is not there.
  const JsonValue& operator[](const std::string& name) const;
};

// Nothing when `text` is not exactly one JSON value.
std::optional<JsonValue> ParseJson(std::string_view text);

// The bytes of a file; empty when it cannot be read.
std::string ReadFile(const std::string& path);

// A new private directory, removed with all in it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace mydist::testing
