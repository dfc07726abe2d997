#pragma once
/// JSON documents that we write. To read a file that people wrote, use base/config.h, which knows
/// lines and columns.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/result.h"

namespace orrery::base {

/// Canonical text: keys sorted, two spaces of indent, doubles as the shortest digits that read back
/// equal, UTF-8, one newline at the end. Equal documents give equal bytes. @pre every number is
/// finite (JSON has no other).
[[nodiscard]] std::string to_text(const Json& document);
/// The same document on one line, without a newline (for lines of a log).
[[nodiscard]] std::string to_line(const Json& document);

/// Strict JSON; `name` is the file in diagnostics. Duplicate keys are not noticed here
/// (base/config.h does). Error: kParse at line:column.
[[nodiscard]] Result<Json> parse_json(std::string_view text, std::string_view name);

/// to_text + write_file_atomic.
[[nodiscard]] Result<void> write_json(const std::filesystem::path& path, const Json& document);

}  // namespace orrery::base
