# Whether each kernel of a .ptx moves 16 bytes with one access, of device memory: cut in pieces, or
# for any kind of memory, it would be right and slow.
# Usage: cmake -DPTX=FILE -P check_wide_accesses.cmake
cmake_minimum_required(VERSION 3.25)
file(STRINGS "${PTX}" _kernels REGEX "\\.entry ")
file(STRINGS "${PTX}" _loads REGEX "[^a-z]ld\\.global[.a-z0-9]*\\.(v4\\.[bsuf]32|v2\\.[bsuf]64)")
file(STRINGS "${PTX}" _stores REGEX "[^a-z]st\\.global[.a-z0-9]*\\.(v4\\.[bsuf]32|v2\\.[bsuf]64)")
file(STRINGS "${PTX}" _generic REGEX "[^a-z](ld|st)\\.v[24]\\.")
foreach(_what kernels loads stores generic)
  list(LENGTH _${_what} _${_what}_count)
endforeach()
message("${_kernels_count} kernels, accesses of 16 bytes: ${_loads_count} loads, "
        "${_stores_count} stores; ${_generic_count} not known to be of device memory")
# Own contribution, those of others, result.
math(EXPR _least_loads "2 * ${_kernels_count}")
if(_kernels_count EQUAL 0 OR _loads_count LESS _least_loads OR _stores_count LESS _kernels_count OR
   _generic_count GREATER 0)
  message(FATAL_ERROR "expected 2 loads and a store in each kernel, and none of the last kind; "
                      "see Load and Store in csrc/ops/cuda/convert_thread.h")
endif()
