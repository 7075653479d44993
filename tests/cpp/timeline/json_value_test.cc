// The checker itself: a checker that accepts everything would prove nothing.
#include "timeline/json_value.h"

#include <gtest/gtest.h>

namespace mydist::testing {
namespace {

TEST(JsonValueTest, AcceptsJson) {
  for (const std::string_view text :
       {"[]", " [ ] \n", "{}", "0", "-1.5e+3", "\"\\u00e9\\n\"", "[1,{\"a\":[true,null]}]",
        "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\""}) {
    EXPECT_TRUE(ParseJson(text).has_value()) << text;
  }
}

TEST(JsonValueTest, RefusesWhatIsNoJson) {
  for (const std::string_view text : {"",
                                      "[",
                                      "]",
                                      "[1,]",
                                      "[,1]",
                                      "[1 2]",
                                      "{\"a\"}",
                                      "{a:1}",
                                      "{\"a\":1,}",
                                      "01",
                                      "1.",
                                      ".5",
                                      "+1",
                                      "1e",
                                      "\"",
                                      "\"\\x\"",
                                      "\"\\u12g4\"",
                                      "\"\n\"",
                                      "[] []",
                                      "[]x",
                                      "nul",
                                      "\"\xFF\"",
                                      "\"\xC0\xAF\"",
                                      "\"\xED\xA0\x80\"",
                                      "\"\xF5\x80\x80\x80\"",
                                      "\"\xC3\"",
                                      "{\"a\":1,\"a\":2}"}) {
    EXPECT_FALSE(ParseJson(text).has_value()) << text;
  }
  EXPECT_FALSE(ParseJson(std::string_view("[]\0", 3)).has_value());
}

TEST(JsonValueTest, ReadsValues) {
  const auto value = ParseJson(R"([{"a":2.5,"b":"x\ty"},false])");
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->items[0]["a"].number, 2.5);
  EXPECT_EQ(value->items[0]["b"].text, "x\ty");
  EXPECT_EQ(value->items[0]["c"].kind, JsonValue::Kind::kNull);
}

}  // namespace
}  // namespace mydist::testing
