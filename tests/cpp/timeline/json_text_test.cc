#include "timeline/trace_format.h"

#include <gtest/gtest.h>

#include <random>

#include "timeline/json_value.h"

namespace mydist {
namespace {

using testing::ParseJson;

TEST(JsonTextTest, PlainTextIsKept) {
  EXPECT_EQ(JsonText("layer1.weight"), "\"layer1.weight\"");
  EXPECT_EQ(JsonText(""), "\"\"");
  EXPECT_EQ(JsonText("é€😀"), "\"é€😀\"");
}

TEST(JsonTextTest, SpecialCharactersAreEscaped) {
  EXPECT_EQ(JsonText("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(JsonText(std::string_view("\n\0\x1f\x7f", 4)), "\"\\u000a\\u0000\\u001f\\u007f\"");
}

TEST(JsonTextTest, InvalidUtf8BecomesTheReplacementCharacter) {
  EXPECT_EQ(JsonText("\xFF"), "\"\\ufffd\"");
  EXPECT_EQ(JsonText("a\xC3"), "\"a\\ufffd\"");                      // Ends too early.
  EXPECT_EQ(JsonText("\xC0\xAF"), "\"\\ufffd\\ufffd\"");             // Overlong.
  EXPECT_EQ(JsonText("\xED\xA0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");  // Surrogate.
  EXPECT_EQ(JsonText("\xE2\x28\xA1"), "\"\\ufffd(\\ufffd\"");
}

TEST(JsonTextTest, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(JsonText("abcdefghijklmnop", 18), "\"abcdefghijklmnop\"");
  EXPECT_EQ(JsonText("abcdefghijklmnop", 17), "\"abcdefghi\\u2026\"");
  EXPECT_EQ(JsonText("ééééééééé", 16), "\"éééé\\u2026\"");
  EXPECT_EQ(JsonText(std::string_view("\0\0\0\0", 4), 16), "\"\\u0000\\u2026\"");
}

TEST(JsonTextTest, AnyBytesGiveAJsonStringWithinTheLimit) {
  std::mt19937 random(5);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 60, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const size_t max_bytes = 16 + random() % 200;
    const std::string text = JsonText(bytes, max_bytes);
    ASSERT_LE(text.size(), max_bytes);
    const auto value = ParseJson(text);
    ASSERT_TRUE(value.has_value()) << text;
    ASSERT_EQ(value->kind, testing::JsonValue::Kind::kText);
  }
}

}  // namespace
}  // namespace mydist
