# Whether each kernel of a .ptx moves 16 bytes with one access, of device memory: cut in pieces, or
# for any kind of memory, it would be right and slow.
# Usage: cmake -DPTX=FILE -P check_wide_accesses.cmake
cmake_minimum_required(VERSION 3.25)

set(_wide "(v4\\.[bsuf]32|v2\\.[bsuf]64)")
set(_kernel "")
set(_kernel_count 0)

function(mydist_check_kernel)
  # A load and a store; where a type is cast, as many as a thread has units, on the wider side.
  if(_kernel AND (_wide_count LESS 2 OR _generic GREATER 0))
    message(FATAL_ERROR
      "${_kernel} has ${_wide_count} accesses of 16 bytes, and ${_generic} wide ones that are not "
      "known to be of device memory; expected 2 at least, and none of the last kind. See Load and "
      "Store in csrc/gpu/kernels/convert_plan.h")
  endif()
endfunction()

file(STRINGS "${PTX}" _lines REGEX "\\.entry |[^a-z](ld|st)\\.")
foreach(_line IN LISTS _lines)
  if(_line MATCHES "\\.entry ([A-Za-z0-9_]+)")
    set(_name "${CMAKE_MATCH_1}")
    mydist_check_kernel()
    set(_kernel "${_name}")
    math(EXPR _kernel_count "${_kernel_count} + 1")
    set(_wide_count 0)
    set(_generic 0)
  elseif(_line MATCHES "[^a-z](ld|st)\\.global[.a-z0-9]*\\.${_wide}")
    math(EXPR _wide_count "${_wide_count} + 1")
  elseif(_line MATCHES "[^a-z](ld|st)\\.v[24]\\.")
    math(EXPR _generic "${_generic} + 1")
  endif()
endforeach()
mydist_check_kernel()
if(_kernel_count EQUAL 0)
  message(FATAL_ERROR "${PTX} has no kernel")
endif()
message("${_kernel_count} kernels, each with accesses of 16 bytes")
