# Backend plugins, opened at run time with RTLD_NOW|RTLD_LOCAL. -Bsymbolic keeps each plugin's own
# definitions first; --no-undefined makes a missing dependency an error now and not at dlopen.
set(MYDIST_PLUGINS "")

function(mydist_plugin name)
  add_library(${name} SHARED ${ARGN})
  mydist_compile_options(${name})
  target_link_libraries(${name} PRIVATE mydist Threads::Threads)
  target_link_options(${name} PRIVATE -Wl,-Bsymbolic -Wl,--as-needed)
  if(NOT MYDIST_SANITIZE_FLAGS)
    target_link_options(${name} PRIVATE -Wl,--no-undefined)
  endif()
  set_target_properties(${name} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${MYDIST_PACKAGE_DIR}/lib"
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN")
  install(TARGETS ${name} LIBRARY DESTINATION lib)
endfunction()

if(MYDIST_CORE_BUILT AND MYDIST_MPI_BUILT)
  mydist_plugin(mydist_mpi ${MYDIST_MPI_SOURCES})
  target_link_libraries(mydist_mpi PRIVATE MPI::MPI_CXX)

  # Preloaded into mpirun, which is a C program: it must need nothing but libc.
  add_library(mydist_mpirun SHARED csrc/transport/mpi/mpirun/closed_ports.cc)
  target_compile_features(mydist_mpirun PRIVATE cxx_std_20)
  target_compile_options(mydist_mpirun PRIVATE ${MYDIST_WARNINGS} -fno-exceptions -fno-rtti)
  target_link_options(mydist_mpirun PRIVATE -Wl,--as-needed -Wl,--no-undefined)
  set_target_properties(mydist_mpirun PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY "${MYDIST_PACKAGE_DIR}/lib")
  install(TARGETS mydist_mpirun LIBRARY DESTINATION lib)
endif()

if(MYDIST_CORE_BUILT AND MYDIST_GLOO_BUILT)
  mydist_plugin(mydist_gloo ${MYDIST_GLOO_SOURCES})
  target_link_libraries(mydist_gloo PRIVATE mydist_gloo_library)
endif()

# CUDA's runtime is linked statically and stays inside; NCCL is opened at run time.
if(MYDIST_CORE_BUILT AND MYDIST_CUDA_BUILT)
  mydist_plugin(mydist_nccl ${MYDIST_NCCL_SOURCES} ${MYDIST_KERNEL_SOURCES})
  target_link_libraries(mydist_nccl PRIVATE CUDA::cudart_static)
  # The runtime is named above: what CMake would add is not found in every layout of a toolkit.
  set_target_properties(mydist_nccl PROPERTIES LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY None)
endif()

# The parameter server, its client, and what they share.
if(MYDIST_CORE_BUILT AND MYDIST_PS_BUILT)
  # Loops over parameters, as those of csrc/kernels: without fused multiply-adds, which round otherwise.
  mydist_sources(_rules "*.cc" csrc/ps/rules)
  list(APPEND _rules "${PROJECT_SOURCE_DIR}/csrc/ps/finite.cc")
  set_source_files_properties(${_rules} PROPERTIES
    COMPILE_OPTIONS "-ffp-contract=off;-fno-math-errno;$<$<CONFIG:Release>:${MYDIST_LOOPS_OPTIMIZED}>"
    SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)

  add_library(mydist_ps_objects OBJECT ${MYDIST_PS_SOURCES})
  mydist_compile_options(mydist_ps_objects)
  target_include_directories(mydist_ps_objects SYSTEM PRIVATE "${MYDIST_ASIO_INCLUDE_DIR}")
  # Asio's own names stay inside: another library of the process may have brought another Asio.
  target_compile_definitions(mydist_ps_objects PRIVATE
    ASIO_STANDALONE ASIO_NO_DEPRECATED ASIO_DISABLE_VISIBILITY)
  # Not with libmydist: a test has the core's objects itself, and would have all of it twice.
  target_link_libraries(mydist_ps_objects PRIVATE OpenSSL::Crypto Threads::Threads)

  mydist_plugin(mydist_ps $<TARGET_OBJECTS:mydist_ps_objects>)
  target_link_libraries(mydist_ps PRIVATE OpenSSL::Crypto)

  add_executable(mydist_server csrc/ps/program/main.cc)
  mydist_compile_options(mydist_server)
  target_link_libraries(mydist_server PRIVATE mydist mydist_ps)
  set_target_properties(mydist_server PROPERTIES
    OUTPUT_NAME mydist-server
    RUNTIME_OUTPUT_DIRECTORY "${MYDIST_PACKAGE_DIR}/bin"
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN/../lib")
  install(TARGETS mydist_server RUNTIME DESTINATION bin)
endif()
