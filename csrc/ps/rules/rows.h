// The row of each rule, which its own file defines. A new rule adds one line here and one to
// rows.cc.
#pragma once

#include "ps/rules/update_rule.h"

namespace mydist::ps {

RuleRow AddRow();     // add.cc
RuleRow AssignRow();  // assign.cc
RuleRow SgdRow();     // sgd.cc

}  // namespace mydist::ps
