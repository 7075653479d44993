#include <pybind11/pybind11.h>

#include "torch/bindings.h"
#include "torch/cached_memory.h"

PYBIND11_MODULE(_C, module) {
  // The tensor conversions below need torch's own types to be registered.
  pybind11::module_::import("torch");
  mydist::BindErrors(module);
  mydist::BindLifecycle(module);
  mydist::BindCollectives(module);
  mydist::BindRooted(module);
  mydist::BindProcessSets(module);
  mydist::BindGradientReducer(module);
  mydist::OfferCachedMemory();
}
