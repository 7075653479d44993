# One test program per folder of tests/cpp: test_<folder>, linked to the core's objects so that
# hidden symbols can be tested. The plugins are tested in tests/cpp/transport.
set(MYDIST_TESTS_BUILT OFF)
set(MYDIST_TESTS_REASON "")
if(NOT MYDIST_BUILD_TESTS)
  set(MYDIST_TESTS_REASON "switched off by MYDIST_BUILD_TESTS=OFF")
  return()
elseif(NOT MYDIST_CORE_BUILT)
  set(MYDIST_TESTS_REASON "this source tree has no csrc")
  return()
endif()

find_package(GTest QUIET)
if(NOT TARGET GTest::gmock_main)
  message(FATAL_ERROR "The C++ tests need GoogleTest with GoogleMock, which was not found "
    "(Debian: apt-get install libgtest-dev libgmock-dev). Install it, or build without the "
    "tests: -DMYDIST_BUILD_TESTS=OFF.")
endif()
enable_testing()
find_program(MYDIST_TEST_PYTHON python3 REQUIRED)

# Seconds after which a test counts as hung: far more than any takes, as a machine may be busy. The
# limit of CTest is for what is no GoogleTest program.
set(MYDIST_TEST_LIMIT_S 300)
set(MYDIST_TEST_TIMEOUT_S 600)

# What runs under a sanitizer on every change: "threads" what has threads, "bytes" what parses bytes
# or shares memory. make deep runs all of them. Each label is also a target that builds its programs.
foreach(_label threads bytes)
  add_custom_target(mydist_tests_${_label})
endforeach()

# mydist_run_gtest(NAME [SHARDS N] [ALONE PATTERN...] [LABELS LABEL...]): N entries of CTest for one
# program. ALONE names tests that need a process of their own; see scripts/run_gtest.py.
function(mydist_run_gtest name)
  cmake_parse_arguments(_run "" "SHARDS" "ALONE;LABELS" ${ARGN})
  if(NOT _run_SHARDS)
    set(_run_SHARDS 1)
  endif()
  list(JOIN _run_ALONE ":" _alone)
  foreach(_shard RANGE 1 ${_run_SHARDS})
    set(_entry "${name}.${_shard}")
    add_test(NAME ${_entry} COMMAND "${MYDIST_TEST_PYTHON}"
      "${PROJECT_SOURCE_DIR}/scripts/run_gtest.py" $<TARGET_FILE:${name}>
      --shard ${_shard}/${_run_SHARDS} --alone "${_alone}" --limit ${MYDIST_TEST_LIMIT_S}
      --report "${PROJECT_BINARY_DIR}/reports/${_entry}.jsonl")
    set_tests_properties(${_entry} PROPERTIES TIMEOUT 3600 LABELS "cpp;${_run_LABELS}")
  endforeach()
  foreach(_label IN LISTS _run_LABELS)
    if(TARGET mydist_tests_${_label})
      add_dependencies(mydist_tests_${_label} ${name})
    endif()
  endforeach()
endfunction()

# Tests are compiled more often than they run; those that compute a lot are HEAVY. GoogleTest's headers
# are most of what a test compiles: once for each kind, as GCC takes a precompiled header of other
# flags, or crashes of it.
set(MYDIST_TEST_OPTIONS -O1 -Wno-dangling-else)
set(MYDIST_HEAVY_TEST_OPTIONS -Wno-dangling-else)
function(mydist_gtest_headers name)
  add_library(${name} OBJECT "${PROJECT_SOURCE_DIR}/tests/cpp/gtest_headers.cc")
  mydist_compile_options(${name})
  # A program is compiled with -fPIE.
  target_compile_options(${name} PRIVATE ${ARGN} -fPIE)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_link_libraries(${name} PRIVATE GTest::gmock Threads::Threads)
  target_precompile_headers(${name} PRIVATE
    <gmock/gmock.h> <gtest/gtest.h> <chrono> <cstdint> <functional> <memory> <random> <string>
    <thread> <utility> <vector>)
endfunction()
mydist_gtest_headers(mydist_gtest_headers ${MYDIST_TEST_OPTIONS})
mydist_gtest_headers(mydist_heavy_gtest_headers ${MYDIST_HEAVY_TEST_OPTIONS})
# mydist_precompiled_gtest(TARGET [HEAVY])
function(mydist_precompiled_gtest target)
  set(_headers mydist_gtest_headers)
  set(_options ${MYDIST_TEST_OPTIONS})
  if("HEAVY" IN_LIST ARGN)
    set(_headers mydist_heavy_gtest_headers)
    set(_options ${MYDIST_HEAVY_TEST_OPTIONS})
  endif()
  target_compile_options(${target} PRIVATE ${_options})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 warns of concatenations in the standard library once its header is precompiled.
    target_compile_options(${target} PRIVATE -Wno-stringop-overflow)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${_headers})
endfunction()

# mydist_test(NAME SOURCES... [OWN_HEADERS] [HEAVY] [SHARDS N] [ALONE PATTERN...] [LABELS LABEL...])
function(mydist_test name)
  cmake_parse_arguments(_test "OWN_HEADERS;HEAVY" "SHARDS" "ALONE;LABELS" ${ARGN})
  add_executable(${name} ${_test_UNPARSED_ARGUMENTS})
  if(MYDIST_SANITIZE STREQUAL "thread")  # Ranks that are threads share addresses; see the file.
    target_sources(${name} PRIVATE
      "${PROJECT_SOURCE_DIR}/tests/cpp/sanitizer/one_mapping.cc")
    target_link_options(${name} PRIVATE -Wl,--wrap=mmap,--wrap=munmap)
  endif()
  mydist_compile_options(${name})
  if(_test_HEAVY)
    mydist_precompiled_gtest(${name} HEAVY)
  elseif(NOT _test_OWN_HEADERS)
    mydist_precompiled_gtest(${name})
  endif()
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests/cpp")
  target_link_libraries(${name} PRIVATE mydist_core_objects GTest::gmock_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  mydist_run_gtest(${name} SHARDS ${_test_SHARDS} ALONE ${_test_ALONE} LABELS ${_test_LABELS})
endfunction()

set(MYDIST_TEST_NAMES "")
set(_test_folders base config world timeline kernels memory transport controller algorithms planner
    engine job lanes)
# Devices and NCCL of the tests' own, with what of the NCCL plugin needs no CUDA.
mydist_sources(_files "*.cc" tests/cpp/fakes)
list(FILTER _files EXCLUDE REGEX "_test\\.cc$")
add_library(mydist_fakes OBJECT ${_files}
  csrc/gpu/nccl_collectives.cc csrc/gpu/nccl_communicator.cc)
mydist_compile_options(mydist_fakes)
target_include_directories(mydist_fakes PRIVATE "${PROJECT_SOURCE_DIR}/tests/cpp")
if(MYDIST_PS_BUILT)
  list(APPEND _test_folders ps)
endif()
set(_needs_fakes algorithms planner engine memory)
# Programs of more than half a minute are cut in pieces; the fakes' memory that a lost rank may still
# write to, and a count of allocations, belong to a process.
set(_algorithms HEAVY SHARDS 4 LABELS threads)
set(_base LABELS threads)
set(_controller HEAVY SHARDS 3 LABELS bytes)
set(_engine SHARDS 2 LABELS threads ALONE EngineNcclLoss.* EngineOnGpuMistake.*)
set(_job LABELS threads)
set(_lanes LABELS threads)
set(_memory LABELS threads bytes)
set(_ps LABELS threads bytes)
set(_timeline LABELS threads bytes)
set(_transport SHARDS 2 LABELS threads bytes)
set(_allocation ALONE *CollectivesAllocateNothing*)
# It replaces operator new, as the sanitizers do.
if(NOT MYDIST_SANITIZE_FLAGS)
  list(APPEND _test_folders allocation)
endif()
if(MYDIST_SANITIZE STREQUAL "thread")
  mydist_test(test_sanitizer "${PROJECT_SOURCE_DIR}/tests/cpp/sanitizer/one_mapping_test.cc"
    LABELS threads)
endif()
# Each has a world of its own: programs, their runners and cases.
mydist_sources(_files "*_property_test.cc" tests/cpp/controller)
list(APPEND _files "${PROJECT_SOURCE_DIR}/tests/cpp/controller/mixed_program_test.cc")
# And operator new of a test's own is not to be inlined into its neighbours.
list(APPEND _files "${PROJECT_SOURCE_DIR}/tests/cpp/allocation/allocation_count.cc")
set_source_files_properties(${_files} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
foreach(_folder IN LISTS _test_folders)
  set(_files "")
  foreach(_inner "" /shm /device /messages /local /loopback /rules /port)
    mydist_sources(_more "*.cc" tests/cpp/${_folder}${_inner})
    list(APPEND _files ${_more})
  endforeach()
  if(_files)
    mydist_test(test_${_folder} ${_files} ${_${_folder}})
    if(_folder IN_LIST _needs_fakes)
      target_link_libraries(test_${_folder} PRIVATE mydist_fakes)
    endif()
    if(_folder STREQUAL "ps")
      target_link_libraries(test_ps PRIVATE mydist_ps_objects OpenSSL::Crypto)
    endif()
    list(APPEND MYDIST_TEST_NAMES ${_folder})
  endif()
endforeach()
# What of the room for GPUs runs without one, and the fakes themselves.
mydist_sources(_files "*_test.cc" tests/cpp/gpu tests/cpp/fakes)
mydist_test(test_gpu_on_fakes ${_files})
target_link_libraries(test_gpu_on_fakes PRIVATE mydist_fakes)
list(APPEND MYDIST_TEST_NAMES gpu_on_fakes)
# What peers, users and files may send; the program that looks for more is in cmake/fuzz.cmake.
mydist_test(test_fuzz ${MYDIST_FUZZ_SOURCES} "${PROJECT_SOURCE_DIR}/tests/fuzz/cpp/corpus_test.cc"
  LABELS bytes)
target_include_directories(test_fuzz PRIVATE "${PROJECT_SOURCE_DIR}/tests/fuzz/cpp")
list(APPEND MYDIST_TEST_NAMES fuzz)
set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/fuzz/cpp/corpus_test.cc"
  PROPERTIES COMPILE_DEFINITIONS "MYDIST_FUZZ_CORPUS=\"${PROJECT_SOURCE_DIR}/tests/fuzz/corpus\"")
set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/cpp/config/documentation_test.cc"
  PROPERTIES COMPILE_DEFINITIONS "MYDIST_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\"")
# The torch binding, with an interpreter of the tests' own and GPUs that torch takes for CUDA's.
if(MYDIST_TORCH_BUILT)
  find_package(Python 3.11 COMPONENTS Interpreter Development.Embed)
  mydist_sources(_files "*.cc" tests/cpp/torch)
  if(Python_Development.Embed_FOUND AND _files AND NOT MYDIST_SANITIZE_FLAGS)
    mydist_test(test_torch ${_files} $<TARGET_OBJECTS:mydist_torch>
                $<TARGET_OBJECTS:mydist_torch_tensors> OWN_HEADERS)
    mydist_use_torch(test_torch)
    target_compile_options(test_torch PRIVATE ${MYDIST_TEST_OPTIONS})
    target_precompile_headers(test_torch PRIVATE <gtest/gtest.h> ${MYDIST_TORCH_HEADERS})
    target_link_libraries(test_torch PRIVATE mydist_fakes Python::Python)
    # The interpreter finds its own library, but not the packages of a virtual environment.
    get_filename_component(_packages "${MYDIST_TORCH_LIB}/../.." ABSOLUTE)
    # For the one file that asks: with the name of a folder in it ccache knows no other clone's.
    set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/cpp/torch/embedded_python.cc"
      PROPERTIES COMPILE_DEFINITIONS "MYDIST_TORCH_PACKAGES=\"${_packages}\"")
    list(APPEND MYDIST_TEST_NAMES torch)
  endif()
endif()
if(EXISTS "${PROJECT_SOURCE_DIR}/tests/cpp/transport/CMakeLists.txt")
  add_subdirectory(tests/cpp/transport)
  add_subdirectory(tests/cpp/extensions)
  add_subdirectory(tests/cpp/gpu)
  list(APPEND MYDIST_TEST_NAMES plugins)
endif()
if(MYDIST_CUDA_BUILT AND EXISTS "${PROJECT_SOURCE_DIR}/tests/gpu/CMakeLists.txt")
  add_subdirectory(tests/gpu)
  list(APPEND MYDIST_TEST_NAMES gpu)
endif()
if(MYDIST_CUDA_INCLUDE_DIR AND EXISTS "${PROJECT_SOURCE_DIR}/tests/cpp/gpu/host_cuda/CMakeLists.txt")
  add_subdirectory(tests/cpp/gpu/host_cuda)
  list(APPEND MYDIST_TEST_NAMES host_cuda)
endif()
# Code for newer CPUs that the linker took for the rest of the library would crash on others. Not
# with a sanitizer: clang puts data in front of functions, which may read as any instruction.
if(CMAKE_OBJDUMP AND NOT MYDIST_SANITIZE_FLAGS)
  set(_libraries $<TARGET_FILE:mydist>)
  if(MYDIST_PS_BUILT)
    list(APPEND _libraries $<TARGET_FILE:mydist_ps>)
  endif()
  add_test(NAME instructions COMMAND "${MYDIST_TEST_PYTHON}"
    "${PROJECT_SOURCE_DIR}/scripts/check_instructions.py" ${_libraries})
  set_tests_properties(instructions PROPERTIES TIMEOUT ${MYDIST_TEST_TIMEOUT_S} LABELS cpp)
endif()

if(MYDIST_TEST_NAMES)
  set(MYDIST_TESTS_BUILT ON)
else()
  set(MYDIST_TESTS_REASON "this source tree has no tests/cpp")
endif()
