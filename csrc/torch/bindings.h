// The functions that fill mydist._C, one per source file; called once by module.cc at import.
// What Python sees is written down in python/mydist/_C.pyi.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace mydist {

// References to all tensors the engine may read or write; let go of under the GIL.
std::shared_ptr<void> HoldTensorsInFlight();

void BindErrors(pybind11::module_& module);
void BindLifecycle(pybind11::module_& module);
void BindCollectives(pybind11::module_& module);
void BindRooted(pybind11::module_& module);
void BindProcessSets(pybind11::module_& module);
void BindGradientReducer(pybind11::module_& module);

}  // namespace mydist
