#include "torch/embedded_python.h"

#include <gtest/gtest.h>
#include <pybind11/embed.h>

extern "C" PyObject* PyInit__C();

namespace mydist::testing {
namespace {

pybind11::module_* extension = nullptr;

class EmbeddedPython final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (extension != nullptr) return;  // The tests are repeated.
    ASSERT_EQ(PyImport_AppendInittab("_C", &PyInit__C), 0);
    // Never ended: torch keeps objects of it beyond any end.
    pybind11::initialize_interpreter(false);
    pybind11::module_::import("sys").attr("path").attr("insert")(0, MYDIST_TORCH_PACKAGES);
    // As Python does at its start: an editable mydist is found through a file there.
    pybind11::module_::import("site").attr("addsitedir")(MYDIST_TORCH_PACKAGES);
    extension = new pybind11::module_(pybind11::module_::import("_C"));
  }
};

const ::testing::Environment* const kEnvironment =
    ::testing::AddGlobalTestEnvironment(new EmbeddedPython);

}  // namespace

pybind11::module_& Extension() { return *extension; }

}  // namespace mydist::testing
