# Runs bench_convert --smoke and looks at its table: every conversion of 161 tensors is one launch.
# Usage: cmake -DPROGRAM=FILE -P check_bench_convert.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND "${PROGRAM}" --smoke
  RESULT_VARIABLE _result OUTPUT_VARIABLE _output ERROR_VARIABLE _errors)
message("${_output}${_errors}")
if(NOT _result STREQUAL "0")
  message(FATAL_ERROR "bench_convert --smoke: expected exit code 0, got ${_result}.")
endif()
if(NOT _output MATCHES "^161 tensors, ")
  message(FATAL_ERROR "The first line does not say that there are 161 tensors.")
endif()

# Rows are what begins with neither a blank nor a digit; their last column is the launches.
string(REPEAT " +[0-9]+[.]?[0-9]*" 6 _figures)
string(REPLACE ";" "," _output "${_output}")
string(REPLACE "\n" ";" _lines "${_output}")
list(FILTER _lines EXCLUDE REGEX "^( |[0-9]|$)")
set(_rows ${_lines})
list(FILTER _lines EXCLUDE REGEX " ${_figures} +1$")
if(_lines)
  message(FATAL_ERROR "Rows that are not of one launch: ${_lines}")
endif()
# Those that a verdict takes (scripts/gpu_check.py) are among them.
foreach(_name "pack" "pack, × 1/8" "pack to float16, × 1/8")
  set(_of_name ${_rows})
  list(FILTER _of_name INCLUDE REGEX "^${_name}   *[0-9]")
  list(LENGTH _of_name _count)
  if(NOT _count EQUAL 1)
    message(FATAL_ERROR "Expected one row '${_name}', got ${_count}.")
  endif()
endforeach()
