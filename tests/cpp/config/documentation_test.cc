// docs/configuration.md says of every knob what the code says, and names flags that exist.
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

TEST(DocumentationTest, FlagsAreThoseOfTheLauncher) {
  const std::string flags = ReadSource("launcher/flags.py");
  ASSERT_FALSE(flags.empty());
  int flag_count = 0;
  for (const auto& row : DocumentedRows()) {
    // Flags stand in backquotes: `--flag` or `--[no-]flag`.
    std::istringstream cell(row[1]);
    bool is_flag = false;
    int row_flag_count = 0;
    for (std::string part; std::getline(cell, part, '`'); is_flag = !is_flag) {
      if (!is_flag) continue;
      if (part.starts_with("--[no-]")) part.erase(2, 5);
      EXPECT_NE(flags.find("\"" + part + "\""), std::string::npos) << part;
      ++row_flag_count;
    }
    flag_count += row_flag_count;
    // A flag that sets a variable is documented beside it.
    const std::string variable = "\"" + row[0].substr(1, row[0].size() - 2) + "\"";
    if (flags.find(variable) != std::string::npos) {
      EXPECT_GT(row_flag_count, 0) << variable << " has a flag";
    }
  }
  EXPECT_GE(flag_count, 10);
}

}  // namespace
}  // namespace mydist
