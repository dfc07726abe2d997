#pragma once
/// \file
/// Which shared libraries a program loads, asked of the dynamic loader without running the program.
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"

namespace orrery::cli {

struct LoadedLibrary {
  std::string name;            // "libtorch_cpu.so"
  std::filesystem::path path;  // empty: not found, or not readable by this user
};

/// Runs the loader as ldd(1) does, with LD_TRACE_LOADED_OBJECTS set: it lists what it would load
/// and ends. Empty for a program that loads nothing. Error: kMissingFeature, when it cannot be
/// started.
base::Result<std::vector<LoadedLibrary>> libraries_of(const std::filesystem::path& program);

/// Names of those that were not found, as "libc10.so, libtorch_cpu.so".
std::string missing_libraries(const std::vector<LoadedLibrary>& libraries);

/// The program `orrery-executor` beside this one; empty when there is none. In `orrery-executor`
/// itself: this program.
std::filesystem::path executor_program();

/// What helps where libraries are missing.
std::string library_advice();

}  // namespace orrery::cli
