#pragma once
/// Files, whole: read one, or replace one atomically.

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace orrery::base {

/// All bytes of a regular file (or of a pipe). Errors: kNotFound, kUnreadable; both name the path.
/// A device that never ends (/dev/zero) is unreadable.
[[nodiscard]] Result<std::string> read_file(const std::filesystem::path& path);

/// Replaces the file in one step: writes a temporary file in the same folder, flushes it to disk,
/// renames it. A reader sees the old bytes or the new ones; after an error the old file stands and
/// no temporary is left. Creates no folder. "-" is an ordinary name. A symbolic link stands, and
/// what it leads to is replaced; a pipe or a device (/dev/stdout, /dev/null) is written to, never
/// replaced. Errors: kNotFound when the folder does not exist or the path is a folder, else kIo.
[[nodiscard]] Result<void> write_file_atomic(const std::filesystem::path& path,
                                             std::string_view bytes);

/// Whether write_file_atomic may succeed, so that a command refuses before it works for long: the
/// folder is there and may be written, the path is none. The same errors.
[[nodiscard]] Result<void> check_writable(const std::filesystem::path& path);

}  // namespace orrery::base
