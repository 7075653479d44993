// What tests expect of a Status.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/status.h"

namespace mydist {

inline void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }

// This code, and a message that has every part.
inline void ExpectError(const Status& status, StatusCode code,
                        std::initializer_list<std::string_view> parts,
                        const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const ::testing::ScopedTrace trace(file, line, "");
  EXPECT_EQ(status.code(), code) << status.ToString();
  for (const std::string_view part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << status.ToString() << " lacks '" << part << "'";
  }
}

}  // namespace mydist
