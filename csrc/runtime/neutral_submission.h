// NeutralSubmission: what a rank that has joined puts into a collective it did not submit: nothing
// where rows are gathered, elements that change nothing where they are reduced. Pure.
#pragma once

#include "controller/response.h"
#include "runtime/submission.h"
#include "world/process_set.h"

namespace mydist {

// With memory of its own for input and output, which is dropped with it.
Submission NeutralSubmission(const Agreement& agreement, const ProcessSet& set);

}  // namespace mydist
