// FiniteCheck: what MYDIST_CHECK_FINITE does. Used on the calling thread, before the engine has the
// tensors.
#pragma once

#include <vector>

#include "engine/submission.h"

namespace mydist {

// Notes in each request of a reduction what its input has that a sum cannot have: NaN, or infinite
// values. Min and Max take infinite ones. On a GPU it waits for the input.
void NoteValues(std::vector<Submission>& submissions);

}  // namespace mydist
