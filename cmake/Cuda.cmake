# galvatron::cuda: the kernels of cuda/*.cu, compiled, and the libraries they go with. Never the driver's (-lcuda): what
# links it does not start on a machine without a GPU. Where something is missing, `cuda_status` says what.
set(GALVATRON_WHEELS "" CACHE PATH "A Python site-packages folder, whose nvidia/*/lib have the CUDA libraries")
if(GALVATRON_WHEELS)
  file(GLOB wheels ${GALVATRON_WHEELS}/nvidia/*)
  list(APPEND CMAKE_PREFIX_PATH ${wheels})
  find_library(CUDA_cublasLt_LIBRARY NAMES libcublasLt.so.13 libcublasLt.so.12)
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(GALVATRON_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(GALVATRON_NVCC)
  if(NOT GALVATRON_NVCC)
    set(cuda_status "no nvcc found")
    return()
  endif()
  set(ENV{CUDACXX} ${GALVATRON_NVCC})
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  set(cuda_status "nvcc does not compile with this C++ compiler")
  return()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  if(GALVATRON_NATIVE)
    # Hopper, and what the driver compiles for Ampere and newer ones: two thirds of the work.
    set(CMAKE_CUDA_ARCHITECTURES 80-virtual 90a-real)
  else()
    # Ampere, Hopper, and what the driver compiles for newer ones.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual)
  endif()
endif()
enable_language(CUDA)
find_package(CUDAToolkit QUIET)
find_package(CuDNN 9 QUIET)
find_package(NCCL 2.24 QUIET)
foreach(library IN ITEMS CUDA::cudart_static CUDA::cublasLt CuDNN::CuDNN NCCL::NCCL)
  if(NOT TARGET ${library})
    set(cuda_status "${CMAKE_CUDA_COMPILER_VERSION}, but no ${library}")
    return()
  endif()
endforeach()

file(GLOB kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*.cu)
add_library(galvatron_cuda STATIC ${kernels})
add_library(galvatron::cuda ALIAS galvatron_cuda)
set_target_properties(galvatron_cuda PROPERTIES EXPORT_NAME cuda POSITION_INDEPENDENT_CODE ON)
# CMake 3.25 does not know nvcc's C++20, and nvcc warns (554) of conversions that a requires clause rules out.
target_compile_options(galvatron_cuda PUBLIC $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>
                                             $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>
                                      PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-diag-suppress=554>)
# Products of warp groups are instructions of sm_90a alone, which a device's version (9.0) does not tell.
set(warp_groups false)
if(CMAKE_CUDA_ARCHITECTURES MATCHES "90a")
  set(warp_groups true)
endif()
set_source_files_properties(${PROJECT_SOURCE_DIR}/cuda/grouped_product.cu
                            PROPERTIES COMPILE_DEFINITIONS GALVATRON_WARP_GROUPS=${warp_groups})
target_link_libraries(galvatron_cuda PUBLIC galvatron_planning CUDA::cudart_static CUDA::cublasLt CuDNN::CuDNN
                                            NCCL::NCCL)
list(JOIN CMAKE_CUDA_ARCHITECTURES " " architectures)
string(CONCAT cuda_status "${CMAKE_CUDA_COMPILER_VERSION} for ${architectures}, cuDNN ${CuDNN_VERSION}, "
              "NCCL ${NCCL_VERSION}")
