# Looks for standalone Asio and OpenSSL's libcrypto; sets MYDIST_PS_BUILT and _REASON. libmydist_ps:
# the parameter server, its client, and what they share.
set(MYDIST_PS_FOLDERS csrc/ps csrc/ps/rules csrc/ps/port)
mydist_sources(MYDIST_PS_SOURCES "*.cc" ${MYDIST_PS_FOLDERS})
list(FILTER MYDIST_PS_SOURCES EXCLUDE REGEX "/server_main\\.cc$")
set(_obstacle "")
if(MYDIST_SEEKS_PS)
  find_path(MYDIST_ASIO_INCLUDE_DIR asio.hpp)
  find_package(OpenSSL QUIET COMPONENTS Crypto)
  if(NOT MYDIST_ASIO_INCLUDE_DIR)
    set(_obstacle "the header asio.hpp was not found (Debian: apt-get install libasio-dev)")
  elseif(NOT TARGET OpenSSL::Crypto)
    set(_obstacle "OpenSSL's libcrypto was not found (Debian: apt-get install libssl-dev)")
  elseif(NOT MYDIST_PS_SOURCES)
    set(_obstacle "this source tree has no csrc/ps")
  endif()
endif()
mydist_decide(PS "${_obstacle}")

if(NOT MYDIST_CORE_BUILT OR NOT MYDIST_PS_BUILT)
  return()
endif()

file(STRINGS "${MYDIST_ASIO_INCLUDE_DIR}/asio/version.hpp" _version
     REGEX "define ASIO_VERSION [0-9]+")
string(REGEX MATCH "[0-9]+" _version "${_version}")
math(EXPR _major "${_version} / 100000")
math(EXPR _minor "${_version} / 100 % 1000")
math(EXPR _patch "${_version} % 100")
set(MYDIST_ASIO_VERSION "${_major}.${_minor}.${_patch}")

# Loops over parameters, as those of csrc/kernels: without fused multiply-adds, which round otherwise.
mydist_sources(_rules "*.cc" csrc/ps/rules)
set_source_files_properties(${_rules} PROPERTIES
  COMPILE_OPTIONS "-ffp-contract=off;-fno-math-errno;$<$<CONFIG:Release>:${MYDIST_LOOPS_OPTIMIZED}>"
  SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)

add_library(mydist_ps_objects OBJECT ${MYDIST_PS_SOURCES})
mydist_compile_options(mydist_ps_objects)
target_include_directories(mydist_ps_objects SYSTEM PRIVATE "${MYDIST_ASIO_INCLUDE_DIR}")
target_compile_definitions(mydist_ps_objects PRIVATE
  ASIO_STANDALONE ASIO_NO_DEPRECATED MYDIST_ASIO_VERSION="${MYDIST_ASIO_VERSION}")
target_link_libraries(mydist_ps_objects PRIVATE mydist OpenSSL::Crypto Threads::Threads)

mydist_plugin(mydist_ps $<TARGET_OBJECTS:mydist_ps_objects>)
target_link_libraries(mydist_ps PRIVATE OpenSSL::Crypto)
