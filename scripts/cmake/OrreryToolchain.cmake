# orrery_flags: what every target of ours is compiled and linked with. Third-party headers are SYSTEM by way of
# imported targets, so the warnings are about our code alone.
find_program(ORRERY_CCACHE ccache)
if(ORRERY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${ORRERY_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ORRERY_CCACHE})
endif()

add_library(orrery_flags INTERFACE)
target_include_directories(orrery_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(orrery_flags INTERFACE
  -Wall -Wextra -Wconversion -Wshadow
  -ffp-contract=off                                 # the same sums on every machine; never -ffast-math
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=        # __FILE__ is relative to the repository
  $<$<BOOL:${ORRERY_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False alarms of GCC 12: string concatenation (PR 105651), members of temporaries and of std::optional. The dev preset
  # (clang) looks for the real ones.
  target_compile_options(orrery_flags INTERFACE -Wno-restrict -Wno-maybe-uninitialized)
endif()

if(ORRERY_SANITIZE)
  set(sanitize -fsanitize=${ORRERY_SANITIZE} -fno-omit-frame-pointer)
  if(ORRERY_SANITIZE MATCHES "undefined")
    list(APPEND sanitize -fno-sanitize-recover=undefined)
  endif()
  target_compile_options(orrery_flags INTERFACE ${sanitize})
  target_link_options(orrery_flags INTERFACE ${sanitize})
  target_compile_definitions(orrery_flags INTERFACE _GLIBCXX_ASSERTIONS)
endif()

include(CheckLinkerFlag)
foreach(linker mold lld)
  check_linker_flag(CXX -fuse-ld=${linker} ORRERY_LINKER_${linker})
  if(ORRERY_LINKER_${linker})
    target_link_options(orrery_flags INTERFACE -fuse-ld=${linker})
    break()
  endif()
endforeach()
