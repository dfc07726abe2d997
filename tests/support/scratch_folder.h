#pragma once
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace orrery::tests {

/// Folder of its own, gone at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    // mkdtemp wants six letters X to replace.
    std::string pattern = (std::filesystem::temp_directory_path() / "orrery-test-").string();
    pattern.append(6, 'X');
    path_ = ::mkdtemp(pattern.data());
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Makes the folders that the name has.
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace orrery::tests
