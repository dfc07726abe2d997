# The executor room: LibTorch always; MPI, CUDA and NCCL where wanted and found.
#
# ORRERY_MPI, ORRERY_CUDA, ORRERY_NCCL: OFF = do not look, AUTO = use when found, ON = an error when not found.
find_package(OrreryTorch REQUIRED)

function(orrery_require feature found)
  if(NOT found AND ORRERY_${feature} STREQUAL "ON")
    message(FATAL_ERROR "ORRERY_${feature}=ON, but ${ARGN}")
  endif()
endfunction()

set(ORRERY_HAS_MPI OFF)
set(ORRERY_HAS_CUDA OFF)
set(ORRERY_HAS_NCCL OFF)

if(NOT ORRERY_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS C)
  orrery_require(MPI "${MPI_C_FOUND}" "no MPI for C was found")
  if(MPI_C_FOUND)
    set(ORRERY_HAS_MPI ON)
  endif()
endif()

if(NOT ORRERY_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  orrery_require(CUDA "${CUDAToolkit_FOUND}" "no CUDA toolkit was found")
  orrery_require(CUDA "${ORRERY_TORCH_CUDA}" "LibTorch has no usable CUDA part: ${ORRERY_TORCH_CUDA_REASON}")
  if(CUDAToolkit_FOUND AND ORRERY_TORCH_CUDA)
    set(ORRERY_HAS_CUDA ON)
  endif()
endif()

if(ORRERY_HAS_CUDA AND NOT ORRERY_NCCL STREQUAL "OFF")
  # The copy that libtorch_cuda.so itself loads comes first: two NCCLs in one process do not mix.
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${ORRERY_TORCH_SITE}/nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
               HINTS ${ORRERY_TORCH_SITE}/nvidia/nccl/lib ${CUDAToolkit_LIBRARY_DIR})
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(ORRERY_HAS_NCCL ON)
    add_library(orrery::nccl UNKNOWN IMPORTED)
    set_target_properties(orrery::nccl PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
  endif()
  orrery_require(NCCL "${ORRERY_HAS_NCCL}" "nccl.h or libnccl was not found")
endif()

# Every major generation that nvcc knows, but for those before Volta, which have no room for what AdamW's launch is given;
# and the oldest of them, which takes least, beside Hopper.
set(all_architectures -arch=all-major)
set(oldest 75)
if(CUDAToolkit_FOUND AND CUDAToolkit_VERSION VERSION_LESS 13)
  set(oldest 70)
  set(all_architectures -gencode=arch=compute_70,code=sm_70 -gencode=arch=compute_80,code=sm_80
                        -gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_90,code=compute_90)
endif()
set(some_architectures -gencode=arch=compute_${oldest},code=sm_${oldest} -gencode=arch=compute_90,code=sm_90)

# orrery_add_kernels(TARGET architectures...): our kernels for devices, by nvcc. No contraction, as on the CPU.
function(orrery_add_kernels target)
  set(objects "")
  set(launcher "")
  if(ORRERY_CCACHE)
    set(launcher ${ORRERY_CCACHE})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/executor/*_cuda.cu)
  foreach(source ${sources})
    cmake_path(GET source STEM name)
    set(object ${PROJECT_BINARY_DIR}/${name}.cu.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${launcher} ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -O3 --fmad=false
              -Werror all-warnings -Xcompiler=-Wall,-Wextra,-fPIC ${ARGN} -I${PROJECT_SOURCE_DIR}
              -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "Building CUDA object ${name}"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  target_sources(${target} PRIVATE ${objects})
endfunction()

# at::parallel_for is a loop of one thread without it.
find_package(OpenMP REQUIRED COMPONENTS CXX)
set(executor_libraries orrery::torch OpenMP::OpenMP_CXX)
set(executor_definitions "")
if(ORRERY_HAS_MPI)
  list(APPEND executor_libraries MPI::MPI_C)
  list(APPEND executor_definitions ORRERY_HAS_MPI OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
endif()
if(ORRERY_HAS_CUDA)
  list(APPEND executor_libraries orrery::torch_cuda CUDA::cudart)
  list(APPEND executor_definitions ORRERY_HAS_CUDA)
endif()
if(ORRERY_HAS_NCCL)
  list(APPEND executor_libraries orrery::nccl)
  list(APPEND executor_definitions ORRERY_HAS_NCCL)
endif()

# LibTorch and MPI are private: a consumer sees the executor's own headers, which name no tensor.
set(executor_left_out "")
if(ORRERY_HAS_NCCL)
  set(executor_left_out EXCLUDE executor/transport/nccl_absent.cc)
endif()
set(headers_of_tensors <ATen/core/Tensor.h> <ATen/TensorOperators.h>)
orrery_headers(orrery_tensor_headers GCC_ONLY LIBRARIES ${executor_libraries} HEADERS ${headers_of_tensors})
orrery_room(executor ${executor_left_out} DEPENDS orrery_plan PRIVATE ${executor_libraries} HEADERS orrery_tensor_headers)
get_target_property(executor_type orrery_executor TYPE)
if(NOT executor_type STREQUAL "INTERFACE_LIBRARY")
  target_compile_definitions(orrery_executor PRIVATE ${executor_definitions})
  # AdamW's loop takes a root: a vector has no errno.
  set_source_files_properties(executor/segments/segments_flat.cc PROPERTIES COMPILE_OPTIONS -fno-math-errno
                              SKIP_PRECOMPILE_HEADERS ON)
  if(ORRERY_HAS_CUDA)
    orrery_add_kernels(orrery_executor ${all_architectures})
  endif()
endif()
# For tests of the room's inside (tests/unit/executor), which do see tensors.
add_library(orrery_executor_internals INTERFACE)
target_link_libraries(orrery_executor_internals INTERFACE orrery_executor ${executor_libraries})
target_compile_definitions(orrery_executor_internals INTERFACE ${executor_definitions})

# A toolkit without a whole CUDA LibTorch (a build machine): the GPU files are compiled and linked all the same, into a
# program that nobody runs, so that they cannot rot.
set(executor_gpu "not built")
if(ORRERY_HAS_CUDA)
  set(executor_gpu "in the executor")
elseif(NOT ORRERY_CUDA STREQUAL "OFF" AND CUDAToolkit_FOUND AND EXISTS ${ORRERY_TORCH_ROOT}/lib/libtorch_cuda.so)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR})
  file(GLOB_RECURSE gpu_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/executor/*_cuda.cc)
  set(gpu_definitions ${executor_definitions} ORRERY_HAS_CUDA)
  set(gpu_libraries ${ORRERY_TORCH_ROOT}/lib/libtorch_cuda.so ${ORRERY_TORCH_ROOT}/lib/libc10_cuda.so CUDA::cudart)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    file(GLOB_RECURSE nccl_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/executor/*_nccl.cc)
    list(APPEND gpu_sources ${nccl_sources})
    list(APPEND gpu_definitions ORRERY_HAS_NCCL)
    list(APPEND gpu_libraries ${NCCL_LIBRARY})
  endif()
  file(WRITE ${PROJECT_BINARY_DIR}/gpu_link_main.cc "int main() { return 0; }\n")
  add_executable(orrery_gpu_link ${gpu_sources} ${PROJECT_BINARY_DIR}/gpu_link_main.cc)
  orrery_add_kernels(orrery_gpu_link ${some_architectures})  # which nobody runs
  target_compile_definitions(orrery_gpu_link PRIVATE ${gpu_definitions})
  target_link_libraries(orrery_gpu_link PRIVATE orrery_executor orrery_plan orrery_flags ${executor_libraries} ${gpu_libraries})
  if(NCCL_INCLUDE_DIR)
    target_include_directories(orrery_gpu_link SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
  endif()
  set(executor_gpu "compiled and linked apart (${ORRERY_TORCH_CUDA_REASON})")
endif()
message(STATUS "Executor: GPU files ${executor_gpu}")
message(STATUS "Executor: LibTorch ${ORRERY_TORCH_VERSION}, MPI ${ORRERY_HAS_MPI}, CUDA ${ORRERY_HAS_CUDA}, NCCL ${ORRERY_HAS_NCCL}")
