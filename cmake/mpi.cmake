# Looks for an MPI with C++-callable headers; sets MYDIST_MPI_BUILT and MYDIST_MPI_REASON.
mydist_sources(MYDIST_MPI_SOURCES "*.cc" csrc/transport/mpi)
set(_obstacle "")
if(MYDIST_SEEKS_MPI)
  # The C++ bindings of MPI-2 are deprecated; the C interface is all we call.
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  if(NOT MPI_CXX_FOUND)
    set(_obstacle "no MPI was found (Debian: apt-get install libopenmpi-dev openmpi-bin)")
  elseif(NOT MYDIST_MPI_SOURCES)
    set(_obstacle "this source tree has no csrc/transport/mpi")
  endif()
endif()
mydist_decide(MPI "${_obstacle}")
