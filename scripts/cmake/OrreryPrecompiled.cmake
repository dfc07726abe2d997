# Headers that most sources include, parsed once for all targets of the same flags. GCC's builds only: the dev preset
# (clang) does without, so that a room, unit or property test that forgets an include fails there.

# orrery_headers(NAME LIBRARIES targets... HEADERS headers...): parses HEADERS, beside those of the standard library, with
# the flags that LIBRARIES ask for. A target that shares them may have more definitions than that, not fewer.
function(orrery_headers name)
  cmake_parse_arguments(PARSED "" "" "LIBRARIES;HEADERS" ${ARGN})
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  set(empty ${PROJECT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${empty} CONTENT "")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${empty})
  target_link_libraries(${name} PRIVATE orrery_flags fmt::fmt tl::expected ${PARSED_LIBRARIES})
  target_compile_options(${name} PRIVATE -fpch-preprocess)  # by which ccache knows what was used
  target_precompile_headers(${name} PRIVATE
    <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <limits> <map> <memory> <numeric> <optional> <set> <span>
    <string> <string_view> <tuple> <unordered_map> <utility> <vector> <fmt/format.h> <tl/expected.hpp> ${PARSED_HEADERS})
endfunction()

# orrery_share_headers(TARGET NAME): what orrery_headers(NAME) parsed.
function(orrery_share_headers target name)
  if(TARGET ${name})
    # GCC forgets which headers were the system's, and has false alarms about strings (PR 105651) there. clang looks for them.
    target_compile_options(${target} PRIVATE -fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    target_precompile_headers(${target} REUSE_FROM ${name})
  endif()
endfunction()
