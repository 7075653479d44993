// docs/configuration.md says of every knob what the code says; tests/launcher compares its flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "config/config.h"

namespace mydist {
namespace {

std::string ReadSource(const std::string& name) {
  std::ifstream file(std::filesystem::path(MYDIST_SOURCE_DIR) / name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The cells of the table's rows, without the spaces around them.
std::vector<std::vector<std::string>> DocumentedRows() {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(ReadSource("docs/configuration.md"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `MYDIST_")) continue;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');) {
      const size_t first = cell.find_first_not_of(' ');
      const size_t last = cell.find_last_not_of(' ');
      cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
    }
    rows.push_back(cells);
  }
  return rows;
}

TEST(DocumentationTest, TableAndCodeAgree) {
  const auto rows = DocumentedRows();
  ASSERT_EQ(rows.size(), Knobs().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Knob knob = Knobs()[i];
    ASSERT_EQ(rows[i].size(), 5U) << knob.variable;
    EXPECT_EQ(rows[i][0], "`" + knob.variable + "`");
    EXPECT_FALSE(rows[i][2].empty()) << knob.variable << " has no meaning";
    EXPECT_EQ(rows[i][3], knob.allowed) << knob.variable;
    EXPECT_EQ(rows[i][4], knob.default_value) << knob.variable;
  }
}

}  // namespace
}  // namespace mydist
