# Every knob of the build. AUTO builds a part when its packages are found, ON insists on it, LATER
# leaves it to the next build (make demo).
set(_auto_values AUTO ON OFF LATER)
foreach(_backend MPI GLOO CUDA PS)
  set(MYDIST_WITH_${_backend} AUTO CACHE STRING
      "Build the ${_backend} part: AUTO, ON, OFF or LATER")
  set_property(CACHE MYDIST_WITH_${_backend} PROPERTY STRINGS ${_auto_values})
  string(TOUPPER "${MYDIST_WITH_${_backend}}" _value)
  if(_value MATCHES "^(ON|TRUE|YES|1)$")
    set(_value ON)
  elseif(_value MATCHES "^(OFF|FALSE|NO|0)$")
    set(_value OFF)
  elseif(NOT _value MATCHES "^(AUTO|LATER)$")
    message(FATAL_ERROR "MYDIST_WITH_${_backend} is '${MYDIST_WITH_${_backend}}', expected AUTO, "
                        "ON, OFF or LATER. Pass e.g. -DMYDIST_WITH_${_backend}=AUTO.")
  endif()
  set(MYDIST_WITH_${_backend} ${_value})
  # Whether its packages are to be looked for.
  set(MYDIST_SEEKS_${_backend} ON)
  if(_value MATCHES "^(OFF|LATER)$")
    set(MYDIST_SEEKS_${_backend} OFF)
  endif()
endforeach()

option(MYDIST_BUILD_TORCH "Build the torch binding (_C)" ON)
option(MYDIST_BUILD_TESTS "Build the C++ tests" ON)
option(MYDIST_BUILD_BENCHMARKS "Build the C++ benchmarks" OFF)
option(MYDIST_UNITY "Compile six files of a target at a time: less for a first build, more for one change" ON)
option(MYDIST_FAILPOINTS "Let MYDIST_FAILPOINT make a rank fail, for tests (docs/decisions/0024-failpoints.md)" OFF)
option(MYDIST_THREAD_SAFETY "Check lock annotations at compile time (clang only)" OFF)
option(MYDIST_SANITIZE_LOOPS "Compile the loops over elements with the sanitizer, too: a minute of a core" ON)
set(MYDIST_SANITIZE "" CACHE STRING
    "Sanitizer: empty, thread, address (with undefined), or fuzz (with these and libFuzzer)")
set_property(CACHE MYDIST_SANITIZE PROPERTY STRINGS "" thread address fuzz)
if(NOT MYDIST_SANITIZE MATCHES "^(|thread|address|fuzz)$")
  message(FATAL_ERROR "MYDIST_SANITIZE is '${MYDIST_SANITIZE}', expected 'thread', 'address', "
                      "'fuzz' or nothing. Pass e.g. -DMYDIST_SANITIZE=thread.")
endif()

get_property(_multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT _multi_config)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# The build tree has the layout of the installed package: <package>/_C.*.so, <package>/lib/*.so.
set(MYDIST_PACKAGE_DIR "${CMAKE_BINARY_DIR}/mydist")

# Decides about one optional part: mydist_decide(MPI "<reason it cannot be built, or empty>")
# sets MYDIST_MPI_BUILT (ON/OFF) and MYDIST_MPI_REASON, or stops when the user insisted.
function(mydist_decide backend obstacle)
  set(_built OFF)
  if(MYDIST_WITH_${backend} STREQUAL "OFF")
    set(_reason "not built: switched off by MYDIST_WITH_${backend}=OFF")
  elseif(MYDIST_WITH_${backend} STREQUAL "LATER")
    set(_reason "not built yet: run make build")
  elseif(NOT obstacle STREQUAL "")
    if(MYDIST_WITH_${backend} STREQUAL "ON")
      message(FATAL_ERROR "MYDIST_WITH_${backend}=ON, but ${obstacle}. "
                          "MYDIST_WITH_${backend}=AUTO or OFF builds without it.")
    endif()
    set(_reason "not built: ${obstacle}")
  else()
    set(_built ON)
    set(_reason "")
  endif()
  set(MYDIST_${backend}_BUILT ${_built} PARENT_SCOPE)
  set(MYDIST_${backend}_REASON "${_reason}" PARENT_SCOPE)
endfunction()
