# mydist_package: exactly what the installed Python package contains, without tests.
add_custom_target(mydist_package)
foreach(_target mydist mydist_mpi mydist_mpirun mydist_gloo mydist_nccl mydist_ps mydist_server mydist_torch mydist_c10d mydist_ps_binding)
  if(TARGET ${_target})
    add_dependencies(mydist_package ${_target})
  endif()
endforeach()
