#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/scratch_folder.h"

namespace orrery::golden {

using tests::ScratchFolder;

struct CliResult {
  int exit_code = -1;
  std::string out, err;
};

/// ORRERY_CLI of the environment, else of the build.
std::filesystem::path program_under_test();

/// Runs the program with a shell command line, in `folder`.
CliResult run_cli(const std::string& arguments, const std::filesystem::path& folder,
                  const std::filesystem::path& program = program_under_test());

}  // namespace orrery::golden
