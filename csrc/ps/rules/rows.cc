#include "ps/rules/rows.h"

namespace mydist::ps {

const std::vector<RuleRow>& RuleRows() {
  static const auto* const kRows = new std::vector<RuleRow>{
      AdaDelayRow(), AdagradRow(), AdamRow(),    AdamWRow(), AdaptiveRevisionRow(), AddRow(),
      AssignRow(),   DcAsgdRow(),  ElasticRow(), FtrlRow(),  NoRuleRow(),           SgdRow()};
  return *kRows;
}

}  // namespace mydist::ps
