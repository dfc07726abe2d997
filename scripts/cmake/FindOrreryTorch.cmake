# LibTorch as the imported target orrery::torch, made from the installed folder.
#
# Not by TorchConfig.cmake: that of a CUDA wheel refuses a machine without a CUDA toolkit, although libtorch_cpu.so
# runs there (it needs only libcudart and libcupti beside its own folder).
#
# Looks in: Torch_DIR, CMAKE_PREFIX_PATH, then the torch package of $ORRERY_PYTHON, of the environment that
# scripts/setup.sh makes, of python3. Sets ORRERY_TORCH_VERSION, ORRERY_TORCH_SITE (site-packages), ORRERY_TORCH_CUDA and,
# when that is off, ORRERY_TORCH_CUDA_REASON; orrery::torch_cuda exists when it is on.
set(ORRERY_TORCH_MINIMUM 2.8)

# --- the folder that holds include/ and lib/ --------------------------------------------------------------------------
set(torch_candidates "")
if(Torch_DIR)
  list(APPEND torch_candidates ${Torch_DIR}/../../..)
endif()
foreach(prefix ${CMAKE_PREFIX_PATH})
  list(APPEND torch_candidates ${prefix} ${prefix}/torch ${prefix}/../..)
endforeach()
if(DEFINED ENV{ORRERY_CACHE})
  set(orrery_cache $ENV{ORRERY_CACHE})
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(orrery_cache $ENV{XDG_CACHE_HOME}/orrery)
else()
  set(orrery_cache $ENV{HOME}/.cache/orrery)
endif()
foreach(python $ENV{ORRERY_PYTHON} ${orrery_cache}/venv/bin/python python3)
  # find_spec does not import torch, which fails where a CUDA library or a Python dependency is missing.
  execute_process(
    COMMAND ${python} -c "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
  if(status EQUAL 0)
    list(APPEND torch_candidates ${folder})
  endif()
endforeach()
set(ORRERY_TORCH_ROOT "")
foreach(folder ${torch_candidates})
  if(EXISTS ${folder}/lib/libtorch_cpu.so AND EXISTS ${folder}/include/torch)
    get_filename_component(ORRERY_TORCH_ROOT ${folder} REALPATH)
    break()
  endif()
endforeach()
if(NOT ORRERY_TORCH_ROOT)
  message(FATAL_ERROR "LibTorch was not found. Run scripts/setup.sh, or set ORRERY_PYTHON to a Python with torch >= "
                      "${ORRERY_TORCH_MINIMUM}, or Torch_DIR, or configure with -DORRERY_EXECUTOR=OFF.")
endif()
get_filename_component(ORRERY_TORCH_SITE ${ORRERY_TORCH_ROOT} DIRECTORY)

# --- version ----------------------------------------------------------------------------------------------------------
set(ORRERY_TORCH_VERSION "")
foreach(file version.py build-version include/torch/version.h include/torch/csrc/api/include/torch/version.h)
  if(NOT ORRERY_TORCH_VERSION AND EXISTS ${ORRERY_TORCH_ROOT}/${file})
    file(READ ${ORRERY_TORCH_ROOT}/${file} text)
    if(text MATCHES "(__version__ = '|TORCH_VERSION \"|^)([0-9]+\\.[0-9]+\\.[0-9]+)")
      set(ORRERY_TORCH_VERSION ${CMAKE_MATCH_2})
    endif()
  endif()
endforeach()
if(NOT ORRERY_TORCH_VERSION)
  message(FATAL_ERROR "The version of LibTorch in ${ORRERY_TORCH_ROOT} cannot be read.")
elseif(ORRERY_TORCH_VERSION VERSION_LESS ORRERY_TORCH_MINIMUM)
  message(FATAL_ERROR "LibTorch ${ORRERY_TORCH_VERSION} in ${ORRERY_TORCH_ROOT} is older than ${ORRERY_TORCH_MINIMUM}.")
endif()

# --- ABI: std::string in the exported symbols must be the one our compiler writes ----------------------------------------
execute_process(COMMAND ${CMAKE_NM} -D --defined-only ${ORRERY_TORCH_ROOT}/lib/libc10.so
                OUTPUT_VARIABLE symbols ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${CMAKE_NM} cannot read ${ORRERY_TORCH_ROOT}/lib/libc10.so.")
elseif(NOT symbols MATCHES "NSt7__cxx1112basic_string")
  message(FATAL_ERROR "LibTorch in ${ORRERY_TORCH_ROOT} is built with the old C++ ABI (_GLIBCXX_USE_CXX11_ABI=0); "
                      "Orrery needs a build with the C++11 ABI, as every wheel from 2.6 on.")
endif()

# --- libraries it loads beside itself -----------------------------------------------------------------------------------
# libtorch_cpu.so of a CUDA wheel needs libcudart and libcupti; they come from the wheels next to it (its own RPATH finds
# those) or from the toolkit (ours must). DT_RPATH, not RUNPATH, because only the former serves the libraries it loads.
file(GLOB torch_cuda_folders /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64 ${ORRERY_TORCH_SITE}/nvidia/*/lib)
if(CUDAToolkit_LIBRARY_DIR)
  list(APPEND torch_cuda_folders ${CUDAToolkit_LIBRARY_DIR})
endif()
function(orrery_missing_libraries library out)
  string(REPLACE ";" ":" path "${ORRERY_TORCH_ROOT}/lib;${torch_cuda_folders}")
  execute_process(COMMAND ${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${path}:$ENV{LD_LIBRARY_PATH} ldd ${library}
                  OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCHALL "[^ \t\n]+ => not found" missing "${text}")
  list(TRANSFORM missing REPLACE " => not found" "")
  list(REMOVE_ITEM missing libcuda.so.1)  # the driver: asked for at run time
  list(JOIN missing " " missing)
  set(${out} "${missing}" PARENT_SCOPE)
endfunction()
orrery_missing_libraries(${ORRERY_TORCH_ROOT}/lib/libtorch_cpu.so missing)
if(missing)
  message(FATAL_ERROR "libtorch_cpu.so needs libraries that are not there: ${missing}. scripts/setup.sh installs them "
                      "(wheels nvidia-cuda-runtime and nvidia-cuda-cupti); a CUDA toolkit in /usr/local/cuda has them.")
endif()

# --- targets --------------------------------------------------------------------------------------------------------------
add_library(orrery::torch INTERFACE IMPORTED)
set(torch_rpath ${ORRERY_TORCH_ROOT}/lib ${torch_cuda_folders})
list(TRANSFORM torch_rpath PREPEND -Wl,-rpath,)
set_target_properties(orrery::torch PROPERTIES
  # After the system's folders: the wheel carries a newer fmt beside its own headers, and ours must be the one we link.
  INTERFACE_COMPILE_OPTIONS "SHELL:-idirafter ${ORRERY_TORCH_ROOT}/include;SHELL:-idirafter ${ORRERY_TORCH_ROOT}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES "${ORRERY_TORCH_ROOT}/lib/libtorch_cpu.so;${ORRERY_TORCH_ROOT}/lib/libc10.so"
  INTERFACE_LINK_OPTIONS "-Wl,--disable-new-dtags;-Wl,--allow-shlib-undefined;${torch_rpath}")

set(ORRERY_TORCH_CUDA OFF)
set(ORRERY_TORCH_CUDA_REASON "")
if(NOT EXISTS ${ORRERY_TORCH_ROOT}/lib/libtorch_cuda.so)
  set(ORRERY_TORCH_CUDA_REASON "it is a CPU build")
else()
  orrery_missing_libraries(${ORRERY_TORCH_ROOT}/lib/libtorch_cuda.so missing)
  if(missing)
    set(ORRERY_TORCH_CUDA_REASON "libtorch_cuda.so needs ${missing}")
  else()
    set(ORRERY_TORCH_CUDA ON)
    add_library(orrery::torch_cuda INTERFACE IMPORTED)
    # Its operators register themselves when it is loaded; no symbol of ours asks for it.
    set_target_properties(orrery::torch_cuda PROPERTIES INTERFACE_LINK_LIBRARIES
      "-Wl,--no-as-needed;${ORRERY_TORCH_ROOT}/lib/libtorch_cuda.so;-Wl,--as-needed;${ORRERY_TORCH_ROOT}/lib/libc10_cuda.so")
  endif()
endif()
set(OrreryTorch_FOUND TRUE)
