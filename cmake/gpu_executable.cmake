# mydist_gpu_executable(NAME FOLDER SOURCES...): a program that needs a GPU, in FOLDER of the build
# tree. With what the plugin is made of, as the plugin itself shows nothing but its entry.
include_guard(GLOBAL)

function(mydist_gpu_executable name folder)
  add_executable(${name} ${ARGN} $<TARGET_OBJECTS:mydist_nccl>)
  mydist_compile_options(${name})
  target_link_libraries(${name} PRIVATE mydist_core_objects CUDA::cudart_static)
  set_target_properties(${name} PROPERTIES
    LINKER_LANGUAGE CXX
    CUDA_RUNTIME_LIBRARY None  # As for the plugin: it is named above.
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${folder}")
endfunction()
