# Headers that most sources include, parsed once for all targets of the same flags. Rooms under the dev preset (clang) do
# without, so that one that forgets an include fails there.

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(options_for_ccache -fpch-preprocess)  # by which it knows what was used
  # GCC forgets which headers were the system's, and has false alarms about strings (PR 105651) there. clang looks for them.
  set(options_of_sharing -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
else()
  set(options_for_ccache "")
  set(options_of_sharing "")
  # CMake's has -Xclang before paths, which ccache then takes for other words.
  set(CMAKE_CXX_COMPILE_OPTIONS_USE_PCH -include-pch <PCH_FILE>)
endif()

# orrery_headers(NAME LIBRARIES targets... HEADERS headers... [OPTIONS flags...] [GCC_ONLY]): parses HEADERS, beside those
# of the standard library, with OPTIONS and the flags that LIBRARIES ask for. A target that shares them has the same
# options (clang insists on the same -O), and may have more definitions than that, not fewer.
function(orrery_headers name)
  cmake_parse_arguments(PARSED "GCC_ONLY" "" "LIBRARIES;HEADERS;OPTIONS" ${ARGN})
  if(PARSED_GCC_ONLY AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  set(empty ${PROJECT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${empty} CONTENT "")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${empty})
  target_link_libraries(${name} PRIVATE orrery_flags fmt::fmt tl::expected ${PARSED_LIBRARIES})
  target_compile_options(${name} PRIVATE ${PARSED_OPTIONS} ${options_for_ccache})
  set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/scripts/cmake/precompile.sh)
  target_precompile_headers(${name} PRIVATE
    <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <limits> <map> <memory> <numeric> <optional> <set> <span>
    <string> <string_view> <tuple> <unordered_map> <utility> <vector> <fmt/format.h> <tl/expected.hpp> ${PARSED_HEADERS})
endfunction()

# orrery_share_headers(TARGET NAME): what orrery_headers(NAME) parsed.
function(orrery_share_headers target name)
  if(TARGET ${name})
    target_compile_options(${target} PRIVATE ${options_for_ccache} ${options_of_sharing})
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()
