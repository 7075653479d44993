# libmydist.so and the object library behind it. No Python, torch, MPI, Gloo or CUDA in here.
set(MYDIST_CORE_FOLDERS
    csrc/base csrc/config csrc/world csrc/timeline csrc/kernels csrc/kernels/compress
    csrc/kernels/simd csrc/memory
    csrc/memory/shm csrc/memory/device csrc/transport csrc/transport/local csrc/transport/loopback
    csrc/controller csrc/controller/messages csrc/controller/frozen csrc/algorithms
    csrc/algorithms/shm csrc/algorithms/device csrc/planner csrc/engine csrc/job csrc/lanes)
mydist_sources(MYDIST_CORE_SOURCES "*.cc" ${MYDIST_CORE_FOLDERS})

# One source, compiled for more than one kind of CPU; which is used is decided at run time. A fused
# multiply-add rounds once instead of twice: other bits where the CPU has it.
set(_exact "-ffp-contract=off")
set(_avx2 "")
set(_avx512 "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(_avx2 -mavx2 -mf16c)
  set(_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
endif()
set(_kernels "${PROJECT_SOURCE_DIR}/csrc/kernels")
# Loops over elements are worth more of the compiler's time than the rest of the core.
mydist_sources(_loops "*.cc" csrc/kernels csrc/kernels/simd)
set_source_files_properties(${_loops} PROPERTIES
  COMPILE_OPTIONS "$<$<CONFIG:Release>:${MYDIST_LOOPS_OPTIMIZED}>" SKIP_PRECOMPILE_HEADERS ON)
# Codecs choose among their loops by themselves; see csrc/kernels/loop.h.
mydist_sources(_codecs "*.cc" csrc/kernels/compress)
set_source_files_properties(${_codecs} PROPERTIES
  COMPILE_OPTIONS "-ffp-contract=off;-fno-math-errno;$<$<CONFIG:Release>:${MYDIST_LOOPS_OPTIMIZED}>"
  SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
if(MYDIST_SANITIZE_FLAGS AND NOT MYDIST_SANITIZE_LOOPS)
  file(GLOB _simd "${_kernels}/simd/kernels_*.cc")
  set_property(SOURCE ${_simd} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=all)
endif()
set_property(SOURCE "${_kernels}/simd/kernels_portable.cc" "${_kernels}/adasum_math.cc"
  APPEND PROPERTY COMPILE_OPTIONS ${_exact})
set_property(SOURCE "${_kernels}/simd/kernels_avx2.cc"
  APPEND PROPERTY COMPILE_OPTIONS ${_exact} ${_avx2})
set_property(SOURCE "${_kernels}/simd/kernels_avx512.cc"
  APPEND PROPERTY COMPILE_OPTIONS ${_exact} ${_avx512})

set(MYDIST_ACCEPTS_FAILPOINTS OFF)
if(MYDIST_FAILPOINTS)
  set(MYDIST_ACCEPTS_FAILPOINTS ON)
endif()
configure_file(cmake/build_config.h.in "${PROJECT_BINARY_DIR}/generated/mydist/build_config.h" @ONLY)

set(MYDIST_CORE_BUILT OFF)
if(MYDIST_CORE_SOURCES)
  set(MYDIST_CORE_BUILT ON)
  add_library(mydist_core_objects OBJECT ${MYDIST_CORE_SOURCES})
  mydist_compile_options(mydist_core_objects)
  target_precompile_headers(mydist_core_objects PRIVATE
    <algorithm> <atomic> <chrono> <cstdint> <deque> <functional> <map> <memory> <mutex> <optional>
    <span> <string> <string_view> <unordered_map> <utility> <vector>)
  target_link_libraries(mydist_core_objects PUBLIC Threads::Threads ${CMAKE_DL_LIBS})

  add_library(mydist SHARED)
  mydist_compile_options(mydist)
  target_link_libraries(mydist PRIVATE mydist_core_objects)
  target_include_directories(mydist INTERFACE "${PROJECT_SOURCE_DIR}/csrc"
                                              "${PROJECT_BINARY_DIR}/generated")
  if(NOT MYDIST_SANITIZE_FLAGS)
    target_link_options(mydist PRIVATE -Wl,--no-undefined)
  endif()
  set_target_properties(mydist PROPERTIES
    LINKER_LANGUAGE CXX
    LIBRARY_OUTPUT_DIRECTORY "${MYDIST_PACKAGE_DIR}/lib"
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN")
  install(TARGETS mydist LIBRARY DESTINATION lib)
endif()
