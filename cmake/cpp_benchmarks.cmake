# bench_allreduce: the core's allreduce next to the speed of the memory (benchmarks/cpp).
# bench_rules: the update rules of the parameter server (benchmarks/cpp).
# bench_link: connections of the parameter server (benchmarks/cpp).
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

# mydist_benchmark(NAME): of benchmarks/cpp/NAME.cc.
function(mydist_benchmark name)
  add_executable(${name} "${PROJECT_SOURCE_DIR}/benchmarks/cpp/${name}.cc")
  mydist_compile_options(${name})
  target_link_libraries(${name} PRIVATE mydist_core_objects)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/benchmarks")
endfunction()
mydist_benchmark(bench_allreduce)
target_include_directories(bench_allreduce PRIVATE "${PROJECT_SOURCE_DIR}/python/mydist/bench")
if(MYDIST_PS_BUILT)
  foreach(_name bench_rules bench_link)
    mydist_benchmark(${_name})
    target_link_libraries(${_name} PRIVATE mydist_ps_objects OpenSSL::Crypto)
  endforeach()
endif()
set(MYDIST_BENCHMARKS_BUILT ON)
if(MYDIST_CUDA_BUILT)
  include(gpu_executable)
  mydist_gpu_executable(bench_convert benchmarks
    "${PROJECT_SOURCE_DIR}/benchmarks/gpu/convert_benchmark.cc")
endif()
