// The checker itself: a checker that accepts everything would prove nothing.
#include "timeline/json_value.h"

#include <gtest/gtest.h>

#include <sstream>

namespace mydist::testing {
namespace {

TEST(JsonValueTest, TellsJsonFromWhatIsNone) {
  for (const std::string_view text :
       {"[]", " [ ] \n", "{}", "0", "-1.5e+3", "\"\\u00e9\\n\"", "[1,{\"a\":[true,null]}]",
        "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\""}) {
    EXPECT_TRUE(ParseJson(text).has_value()) << text;
  }
  // Apart by spaces, but for those that have one.
  std::istringstream none(R"([ [1,] [,1] {"a"} {a:1} {"a":1,} 01 1. .5 1e " "\x" "\u12g4" []x nul)"
                          " \"\xFF\" \"\xC0\xAF\" \"\xED\xA0\x80\" \"\xF5\x80\x80\x80\" \"\xC3\""
                          R"( {"a":1,"a":2})");
  for (std::string text; none >> text;) EXPECT_FALSE(ParseJson(text).has_value()) << text;
  for (const std::string_view text : {"", "[1 2]", "\"\n\"", "[] []"}) {
    EXPECT_FALSE(ParseJson(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace mydist::testing
