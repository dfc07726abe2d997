#pragma once
/// \file
/// A strict reader of the part of TOML 1.0 that configurations use: `[section]` and
/// `[section.part]`, `key = value` with bare keys; basic and literal strings of one line, integers,
/// floats, true and false, arrays (nested, over several lines). Refused with their place: dotted
/// and quoted keys, inline tables, arrays of tables, strings of several lines, dates, numbers of
/// other bases, a section or key that stands twice. (The packaged libraries abort or overflow on
/// some wrong files: toml++ 3.3.0 on "#\n[#", toml11 3.7.1 under AddressSanitizer.)
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery::plan {

struct TomlValue {
  enum class Kind { kString, kInteger, kReal, kBool, kArray };
  Kind kind = Kind::kString;
  std::string text;  // of a string: its characters; of a number or bool: as it stands
  std::vector<TomlValue> items = {};  // of an array
  base::SourceSpan where = {};
};

struct TomlEntry {
  std::string section;  // "parallelism", "quantize.linear.float8"; empty: before the first
  std::string key;
  base::SourceSpan where;  // of the key
  TomlValue value;
};

/// All entries in order of the file. `name` stands for the file in diagnostics. Errors: kParse,
/// kUnsupported, kDuplicateKey; reading stops at the first.
base::Result<std::vector<TomlEntry>> read_toml(std::string_view text, const std::string& name);

}  // namespace orrery::plan
