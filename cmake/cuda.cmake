# Looks for a CUDA toolkit whose nvcc works; sets MYDIST_CUDA_BUILT and MYDIST_CUDA_REASON. NCCL is
# not looked for, as the plugin opens it at run time; its header serves one test only.
mydist_sources(MYDIST_NCCL_SOURCES "*.cc" csrc/gpu csrc/gpu/kernels)
mydist_sources(MYDIST_KERNEL_SOURCES "*.cu" csrc/gpu/kernels)
# Those that need neither CUDA nor NCCL; tests are built of them on every machine.
set(MYDIST_NCCL_PORTABLE
    csrc/gpu/nccl_library.cc
    csrc/gpu/spare_memory.cc)

# The folders of pip's packages: nvidia-cuda-nvcc, -crt, nvidia-nvvm and nvidia-cuda-runtime share
# one, nvidia-nccl has its own.
set(_site_packages "")
foreach(_prefix IN ITEMS "$ENV{VIRTUAL_ENV}" "$ENV{CONDA_PREFIX}")
  if(_prefix)
    file(GLOB _folders "${_prefix}/lib/python3*/site-packages/nvidia")
    list(APPEND _site_packages ${_folders})
  endif()
endforeach()
if(Python_EXECUTABLE)
  get_filename_component(_prefix "${Python_EXECUTABLE}/../.." ABSOLUTE)
  file(GLOB _folders "${_prefix}/lib/python3*/site-packages/nvidia")
  list(APPEND _site_packages ${_folders})
endif()
list(REMOVE_DUPLICATES _site_packages)

set(_obstacle "")
if(MYDIST_SEEKS_CUDA)
  file(GLOB _toolkits /usr/local/cuda-*)
  list(SORT _toolkits COMPARE NATURAL ORDER DESCENDING)
  foreach(_folder IN LISTS _site_packages)
    file(GLOB _wheels "${_folder}/cu[0-9]*")
    list(APPEND _toolkits ${_wheels})
  endforeach()
  find_program(MYDIST_NVCC nvcc
    HINTS "${CUDAToolkit_ROOT}" ENV CUDAToolkit_ROOT ENV CUDA_HOME ENV CUDA_PATH
    PATHS /usr/local/cuda ${_toolkits}
    PATH_SUFFIXES bin)
  if(NOT MYDIST_NCCL_SOURCES)
    set(_obstacle "this source tree has no csrc/gpu")
  elseif(MYDIST_SANITIZE)
    # CUDA's runtime is not instrumented and has leaks of its own. Tests of ours that need no CUDA
    # run all the same.
    set(_obstacle "a build with MYDIST_SANITIZE leaves CUDA out")
  elseif(NOT EXISTS "${MYDIST_NVCC}" AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    string(CONCAT _obstacle "no nvcc was found on PATH, in CUDA_HOME, CUDAToolkit_ROOT or "
      "/usr/local/cuda* (NVIDIA's CUDA toolkit, 12.1 or newer)")
  endif()
endif()

# Headers alone are enough for the tests over a CUDA in host memory, which sanitizers can see into.
if(MYDIST_SEEKS_CUDA)
  # CMake 3.25.1 sets a property of this library, which CUDA 13 has no more, and would stop there.
  if(CMAKE_VERSION VERSION_LESS 3.26 AND NOT TARGET CUDA::nvToolsExt)
    add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
  endif()
  find_package(CUDAToolkit QUIET)
  find_path(MYDIST_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
    DOC "Folder of CUDA's headers, for tests that need no GPU")
  # The last place is where scripts/setup.sh puts it.
  set(_nccl_folders ${_site_packages})
  list(TRANSFORM _nccl_folders APPEND /nccl/include)
  find_path(MYDIST_NCCL_INCLUDE_DIR nccl.h HINTS ENV NCCL_HOME ${_nccl_folders}
    PATHS ${CUDAToolkit_INCLUDE_DIRS} "${PROJECT_SOURCE_DIR}/build/nccl_header"
    PATH_SUFFIXES include
    DOC "Folder of nccl.h, for the test of our declarations")
endif()

# Overridable; GPUs newer than the last are served by its PTX.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90-real 90-virtual
      CACHE STRING "GPU architectures the kernels are built for")
endif()

if(MYDIST_SEEKS_CUDA AND _obstacle STREQUAL "")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} "${MYDIST_NVCC}")
  endif()
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    string(CONCAT _obstacle "${MYDIST_NVCC} was found but cannot compile "
      "(CMakeFiles/CMakeError.log in the build tree says why; CUDAHOSTCXX names another C++ "
      "compiler for it)")
  else()
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)  # Again, as it looks for more now.
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.1)
      string(CONCAT _obstacle "CUDA ${CMAKE_CUDA_COMPILER_VERSION} was found, expected 12.1 or "
        "newer (CUDA_HOME or CUDAToolkit_ROOT names another toolkit)")
    elseif(NOT TARGET CUDA::cudart_static)
      string(CONCAT _obstacle "${CMAKE_CUDA_COMPILER} was found, but neither cuda_runtime.h nor "
        "libcudart_static.a with it")
    endif()
  endif()
endif()
mydist_decide(CUDA "${_obstacle}")

if(MYDIST_CUDA_BUILT)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  endif()
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  if(MYDIST_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${MYDIST_CCACHE}")
  endif()
endif()
