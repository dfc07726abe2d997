#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace orrery::golden {

struct CliResult {
  int exit_code = -1;
  std::string out, err;
};

/// ORRERY_CLI of the environment, else of the build.
std::filesystem::path program_under_test();

/// Runs the program with a shell command line, in `folder`.
CliResult run_cli(const std::string& arguments, const std::filesystem::path& folder,
                  const std::filesystem::path& program = program_under_test());

/// Folder of its own, gone at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const;

 private:
  std::filesystem::path path_;
};

}  // namespace orrery::golden
