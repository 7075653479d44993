// The row of each rule, which its own file defines. A new rule adds one line here and one to
// rows.cc.
#pragma once

#include "ps/rules/update_rule.h"

namespace mydist::ps {

RuleRow AdaDelayRow();          // ada_delay.cc
RuleRow AdagradRow();           // adagrad.cc
RuleRow AdamRow();              // adam.cc
RuleRow AdamWRow();             // adam.cc
RuleRow AdaptiveRevisionRow();  // adaptive_revision.cc
RuleRow AddRow();               // add.cc
RuleRow AssignRow();            // assign.cc
RuleRow DcAsgdRow();            // dc_asgd.cc
RuleRow ElasticRow();           // elastic.cc
RuleRow FtrlRow();              // ftrl.cc
RuleRow NoRuleRow();            // none.cc
RuleRow SgdRow();               // sgd.cc

}  // namespace mydist::ps
