// What the gradient reducer tells users who got in its way. Pure texts, all kInvalidArgument but
// the hint, which keeps its code.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace mydist {

// "gradient of 'layer.weight'"
std::string GradientOf(const std::string& name);
Status TooManyBackwards(const std::string& name, int64_t passes);
Status GradientReplaced(const std::string& name);
// Another thread has taken the gradients from the one that waits for them.
Status LostWhileWaiting();
// A mismatch that may come from a gradient being sparse on some ranks only.
Status WithSparseHint(const Status& mismatch);
Status GradientChanged(const std::string& name);

}  // namespace mydist
