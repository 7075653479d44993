# Language level, warnings, sanitizers, ccache. mydist_compile_options(<target>) applies them.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# A new libmydist.so does not relink what only calls it.
set(CMAKE_LINK_DEPENDS_NO_SHARED ON)
# Line tables only: enough for stack traces, a tenth of the size of -g.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
set(MYDIST_LOOPS_OPTIMIZED -O3)

find_package(Threads REQUIRED)

find_program(MYDIST_CCACHE ccache)
if(MYDIST_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without this ccache does not store what is compiled with precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND}" -E env "CCACHE_SLOPPINESS=pch_defines,time_macros" "${MYDIST_CCACHE}")
endif()

# Designated initializers leave fields out on purpose, hence no -Wmissing-field-initializers.
set(MYDIST_WARNINGS
    -Wall -Wextra -Wno-missing-field-initializers -Wnon-virtual-dtor -Woverloaded-virtual -Wshadow
    -Werror=return-type -Werror=unused-result -Werror=format -Werror=uninitialized
    -Werror=non-virtual-dtor -Werror=overloaded-virtual -Werror=switch -Werror=reorder)

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees overlaps in std::string concatenations that are none.
  list(APPEND MYDIST_WARNINGS -Wno-restrict)
  # It takes an included .cc file for a header.
  if(MYDIST_UNITY)
    list(APPEND MYDIST_WARNINGS -Wno-subobject-linkage)
  endif()
endif()

set(MYDIST_SANITIZE_FLAGS "")
if(MYDIST_SANITIZE STREQUAL "thread")
  set(MYDIST_SANITIZE_FLAGS -fsanitize=thread)
elseif(MYDIST_SANITIZE STREQUAL "address")
  set(MYDIST_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(MYDIST_SANITIZE STREQUAL "fuzz")
  # What is executed is told to libFuzzer, which only the program of cmake/fuzz.cmake links.
  set(MYDIST_SANITIZE_FLAGS -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all)
endif()
if(MYDIST_SANITIZE_FLAGS)
  list(APPEND MYDIST_SANITIZE_FLAGS -fno-omit-frame-pointer)
  set(MYDIST_LOOPS_OPTIMIZED "")
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")  # Functions and lines are all that reports show.
endif()

set(MYDIST_LOCK_ANALYSIS "")
if(MYDIST_THREAD_SAFETY)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MYDIST_THREAD_SAFETY=ON needs clang, got ${CMAKE_CXX_COMPILER_ID}. "
                        "Pass -DCMAKE_CXX_COMPILER=clang++-14 or switch it off.")
  endif()
  set(MYDIST_LOCK_ANALYSIS -Wthread-safety -Werror=thread-safety)
endif()

# Nor without these: ccache recognizes the header by its text, not by when it was compiled.
set(MYDIST_CACHED_HEADERS "")
if(CMAKE_CXX_COMPILER_LAUNCHER AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(MYDIST_CACHED_HEADERS -fpch-preprocess)
elseif(CMAKE_CXX_COMPILER_LAUNCHER AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(MYDIST_CACHED_HEADERS "SHELL:-Xclang -fno-pch-timestamp")
endif()

function(mydist_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${MYDIST_WARNINGS};${MYDIST_SANITIZE_FLAGS};${MYDIST_CACHED_HEADERS}>"
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall>)
  # Tests look at fields without their locks, once no other thread is left.
  if(target MATCHES "^mydist(_core_objects|_mpi|_gloo|_nccl|_torch|_torch_tensors|_ps_objects)?$")
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${MYDIST_LOCK_ANALYSIS}>")
  endif()
  target_link_options(${target} PRIVATE ${MYDIST_SANITIZE_FLAGS})
  # Some compilers link the C++ library statically. Its names stay inside then: torch has brought
  # another copy into the process, and a stream that uses parts of both crashes.
  get_target_property(_type ${target} TYPE)
  if(_type MATCHES "^(SHARED|MODULE)_LIBRARY$")
    target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL)
  endif()
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${MYDIST_UNITY} UNITY_BUILD_BATCH_SIZE 6)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/csrc"
                                               "${PROJECT_BINARY_DIR}/generated")
endfunction()

# Files of folders relative to the source root, e.g. mydist_sources(out "*.cc" csrc/base csrc/world).
# A folder that does not exist contributes nothing.
function(mydist_sources out pattern)
  set(_all "")
  foreach(_folder IN LISTS ARGN)
    file(GLOB _files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${_folder}/${pattern}")
    list(APPEND _all ${_files})
  endforeach()
  set(${out} ${_all} PARENT_SCOPE)
endfunction()
