#pragma once
#include <filesystem>

#include "base/file.h"
#include "base/json.h"

namespace orrery::tests {

inline base::Result<base::Json> read_json(const std::filesystem::path& path) {
  TRY(const std::string text, base::read_file(path));
  return base::parse_json(text, path.string());
}

}  // namespace orrery::tests
