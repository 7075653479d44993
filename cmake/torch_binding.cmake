# mydist/_C: the pybind11 binding, compiled against the torch of the given Python.
mydist_sources(MYDIST_TORCH_SOURCES "*.cc" csrc/torch csrc/torch/gradients)
set(MYDIST_TORCH_BUILT OFF)
set(MYDIST_TORCH_REASON "")
if(NOT MYDIST_BUILD_TORCH)
  set(MYDIST_TORCH_REASON "switched off by MYDIST_BUILD_TORCH=OFF")
  return()
elseif(NOT MYDIST_TORCH_SOURCES OR NOT MYDIST_CORE_BUILT)
  set(MYDIST_TORCH_REASON "this source tree has no csrc/torch")
  return()
endif()

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/query_torch.py"
  OUTPUT_VARIABLE _facts ERROR_VARIABLE _error RESULT_VARIABLE _status
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT _status EQUAL 0)
  message(FATAL_ERROR "The torch binding needs torch in ${Python_EXECUTABLE}, which said:\n${_error}"
    "Install torch there (e.g. pip install torch==2.13.0), point -DPython_EXECUTABLE at a Python "
    "that has it, or build without the binding: -DMYDIST_BUILD_TORCH=OFF.")
endif()
# The script prints version, ABI flag, library folder and the include folders, one a line.
string(REPLACE "\n" ";" _facts "${_facts}")
list(POP_FRONT _facts MYDIST_TORCH_VERSION _torch_abi _torch_lib)
set(_torch_includes ${_facts})

# For what includes torch.
set(MYDIST_TORCH_LIB "${_torch_lib}")
function(mydist_use_torch target)
  target_include_directories(${target} SYSTEM PRIVATE ${_torch_includes})
  target_compile_definitions(${target} PRIVATE
    TORCH_EXTENSION_NAME=_C TORCH_API_INCLUDE_EXTENSION_H
    _GLIBCXX_USE_CXX11_ABI=${_torch_abi})
  target_link_libraries(${target} PRIVATE
    "${_torch_lib}/libtorch_python.so" "${_torch_lib}/libtorch_cpu.so" "${_torch_lib}/libc10.so")
endfunction()

# torch's headers are most of what these files compile, and pybind11's make every file that sees them
# twice as dear: the files that speak to Python have headers of their own.
set(MYDIST_TORCH_HEADERS <ATen/core/Tensor.h> <pybind11/pybind11.h> <torch/csrc/utils/pybind.h>)
set(_python_sources ${MYDIST_TORCH_SOURCES})
list(FILTER _python_sources INCLUDE REGEX
  "/(adamw_update|bindings|codecs|collectives|error_translation|in_flight|lifecycle|gradient_reducer)\\.cc$")
set(_tensor_sources ${MYDIST_TORCH_SOURCES})
list(REMOVE_ITEM _tensor_sources ${_python_sources})

add_library(mydist_torch_tensors OBJECT ${_tensor_sources})
mydist_compile_options(mydist_torch_tensors)
mydist_use_torch(mydist_torch_tensors)
target_precompile_headers(mydist_torch_tensors PRIVATE <ATen/core/Tensor.h>)

python_add_library(mydist_torch MODULE WITH_SOABI ${_python_sources}
                   $<TARGET_OBJECTS:mydist_torch_tensors>)
mydist_compile_options(mydist_torch)
mydist_use_torch(mydist_torch)
target_precompile_headers(mydist_torch PRIVATE ${MYDIST_TORCH_HEADERS})
target_link_libraries(mydist_torch PRIVATE mydist)
set_target_properties(mydist_torch PROPERTIES
  OUTPUT_NAME _C
  LIBRARY_OUTPUT_DIRECTORY "${MYDIST_PACKAGE_DIR}"
  BUILD_WITH_INSTALL_RPATH ON
  # `import torch` has loaded torch's libraries before; the second entry serves tools like ldd.
  INSTALL_RPATH "$ORIGIN/lib:$ORIGIN/../torch/lib")
install(TARGETS mydist_torch LIBRARY DESTINATION .)

# mydist/_c10d: the backend of torch.distributed, which includes still more of torch.
mydist_sources(_group_sources "*.cc" csrc/torch/process_group)
python_add_library(mydist_c10d MODULE WITH_SOABI ${_group_sources}
                   "${PROJECT_SOURCE_DIR}/csrc/torch/tensor_memory.cc")
mydist_compile_options(mydist_c10d)
mydist_use_torch(mydist_c10d)
target_precompile_headers(mydist_c10d PRIVATE
  <ATen/ATen.h> <torch/csrc/distributed/c10d/Backend.hpp> <torch/csrc/utils/pybind.h>)
target_link_libraries(mydist_c10d PRIVATE mydist)
set_target_properties(mydist_c10d PROPERTIES
  OUTPUT_NAME _c10d
  LIBRARY_OUTPUT_DIRECTORY "${MYDIST_PACKAGE_DIR}"
  BUILD_WITH_INSTALL_RPATH ON
  INSTALL_RPATH "$ORIGIN/lib:$ORIGIN/../torch/lib")
install(TARGETS mydist_c10d LIBRARY DESTINATION .)

# mydist/_ps: the parameter server, which knows no torch; its headers come with torch's pybind11.
if(MYDIST_PS_BUILT)
  mydist_sources(_ps_sources "*.cc" csrc/torch/parameter_server)
  python_add_library(mydist_ps_binding MODULE WITH_SOABI ${_ps_sources})
  mydist_compile_options(mydist_ps_binding)
  target_include_directories(mydist_ps_binding SYSTEM PRIVATE ${_torch_includes})
  target_link_libraries(mydist_ps_binding PRIVATE mydist mydist_ps)
  set_target_properties(mydist_ps_binding PROPERTIES
    OUTPUT_NAME _ps
    LIBRARY_OUTPUT_DIRECTORY "${MYDIST_PACKAGE_DIR}"
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN/lib")
  install(TARGETS mydist_ps_binding LIBRARY DESTINATION .)
endif()
# Python compares it before it loads the binding: see python/mydist/_torch_version.py.
file(CONFIGURE OUTPUT "${MYDIST_PACKAGE_DIR}/torch_version.txt" CONTENT "${MYDIST_TORCH_VERSION}\n")
install(FILES "${MYDIST_PACKAGE_DIR}/torch_version.txt" DESTINATION .)
set(MYDIST_TORCH_BUILT ON)
