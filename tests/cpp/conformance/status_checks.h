// What tests expect of a Status.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <source_location>
#include <string>
#include <string_view>

#include "base/status.h"

namespace mydist {

inline void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.ToString(); }

// This code, and a message that has every part.
inline void ExpectError(const Status& status, StatusCode code,
                        std::initializer_list<std::string_view> parts,
                        std::source_location where = std::source_location::current()) {
  const ::testing::ScopedTrace trace(where.file_name(), static_cast<int>(where.line()), "");
  EXPECT_EQ(status.code(), code) << status.ToString();
  for (const std::string_view part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << status.ToString() << " lacks '" << part << "'";
  }
}

}  // namespace mydist
