#pragma once
/// Files, whole: read one, or replace one atomically.

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace orrery::base {

/// All bytes of a regular file (or of a pipe). Errors: kNotFound, kIo; both name the path.
[[nodiscard]] Result<std::string> read_file(const std::filesystem::path& path);

/// Replaces the file in one step: writes a temporary file in the same folder, flushes it to disk,
/// renames it. A reader sees the old bytes or the new ones; after an error the old file stands and
/// no temporary is left. Creates no folder. "-" is an ordinary name. Error: kIo, or kNotFound when
/// the folder does not exist.
[[nodiscard]] Result<void> write_file_atomic(const std::filesystem::path& path,
                                             std::string_view bytes);

}  // namespace orrery::base
