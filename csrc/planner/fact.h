// Fact: something that was chosen when the job started, and why; a row of mydist.explain(). Pure
// data.
#pragma once

#include <string>

namespace mydist {

struct Fact {
  std::string topic;   // One or two words, e.g. "data path".
  std::string choice;  // What was chosen or measured, with units.
  std::string reason;  // Why; may be empty.
};

}  // namespace mydist
