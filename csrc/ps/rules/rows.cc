#include "ps/rules/rows.h"

namespace mydist::ps {

const std::vector<RuleRow>& RuleRows() {
  static const auto* const kRows = new std::vector<RuleRow>{AddRow(), AssignRow(), SgdRow()};
  return *kRows;
}

}  // namespace mydist::ps
