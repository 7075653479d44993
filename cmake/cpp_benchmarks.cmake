# bench_allreduce: the core's allreduce next to the speed of the memory (benchmarks/cpp).
# bench_convert: the kernel that packs, next to the driver's copies on a GPU (benchmarks/gpu).
set(MYDIST_BENCHMARKS_BUILT OFF)
set(MYDIST_BENCHMARKS_REASON "")
set(_source "${PROJECT_SOURCE_DIR}/benchmarks/cpp/bench_allreduce.cc")
if(NOT MYDIST_BUILD_BENCHMARKS)
  set(MYDIST_BENCHMARKS_REASON "switched off by MYDIST_BUILD_BENCHMARKS=OFF")
  return()
elseif(NOT EXISTS "${_source}" OR NOT MYDIST_CORE_BUILT)
  set(MYDIST_BENCHMARKS_REASON "this source tree has no benchmarks/cpp")
  return()
endif()

add_executable(bench_allreduce "${_source}")
mydist_compile_options(bench_allreduce)
target_link_libraries(bench_allreduce PRIVATE mydist_core_objects)
set_target_properties(bench_allreduce PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/benchmarks")
target_include_directories(bench_allreduce PRIVATE "${PROJECT_SOURCE_DIR}/python/mydist/bench")
set(MYDIST_BENCHMARKS_BUILT ON)
if(MYDIST_CUDA_BUILT)
  include(gpu_executable)
  mydist_gpu_executable(bench_convert benchmarks
    "${PROJECT_SOURCE_DIR}/benchmarks/gpu/convert_benchmark.cc")
endif()
