# Looks for a system Gloo (never torch's private copy); sets MYDIST_GLOO_BUILT and _REASON, and
# the imported target mydist_gloo_library.
mydist_sources(MYDIST_GLOO_SOURCES "*.cc" csrc/transport/gloo)
set(_obstacle "")
if(MYDIST_SEEKS_GLOO)
  find_path(MYDIST_GLOO_INCLUDE_DIR gloo/context.h)
  find_library(MYDIST_GLOO_LIBRARY gloo)
  if(NOT MYDIST_GLOO_INCLUDE_DIR)
    set(_obstacle "the header gloo/context.h was not found (Debian: apt-get install libgloo-dev)")
  elseif(NOT MYDIST_GLOO_LIBRARY)
    set(_obstacle "libgloo.so was not found (Debian: apt-get install libgloo-dev)")
  elseif(NOT MYDIST_GLOO_SOURCES)
    set(_obstacle "this source tree has no csrc/transport/gloo")
  endif()
endif()
mydist_decide(GLOO "${_obstacle}")

if(MYDIST_GLOO_BUILT)
  add_library(mydist_gloo_library SHARED IMPORTED)
  set_target_properties(mydist_gloo_library PROPERTIES
    IMPORTED_LOCATION "${MYDIST_GLOO_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${MYDIST_GLOO_INCLUDE_DIR}")
endif()
