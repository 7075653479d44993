// EmbeddedPython: an interpreter for the whole test program, with torch and the extension in it.
// The test's thread has the GIL, as Python code that calls mydist.
#pragma once

#include <pybind11/pybind11.h>

namespace mydist::testing {

// The extension, as Python has it; from the first test on.
pybind11::module_& Extension();

}  // namespace mydist::testing
