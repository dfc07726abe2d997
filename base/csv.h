#pragma once
/// Comma-separated values, read and written as RFC 4180 says, every cell with its place in the
/// file.
///
///     record = cell *("," cell)         one a line: LF or CRLF, the last one may be missing
///     cell   = *(any but " , CR LF)  |  " *(any but ", or "" for one) "
///
/// Beyond the RFC: a UTF-8 byte order mark at the beginning is skipped, and so are lines without
/// any character. A quoted cell may hold line breaks, and keeps them. The readers we know of lose
/// the place of a cell, which a diagnostic needs.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery::base {

struct CsvCell {
  std::string text = {};   ///< without the quotes around it
  std::uint32_t line = 0;  ///< 1-based place of its first byte, the opening quote of a quoted one
  std::uint32_t column = 0;
};

struct CsvRecord {
  std::vector<CsvCell> cells = {};
  std::uint32_t line = 0;
  /// malformed: a quote where none may stand, or one that never closes
  std::optional<Diagnostic> fault = {};
};

struct Csv {
  std::vector<CsvRecord> records = {};
  std::string line_end = "\n";  ///< of the first line
};

/// Reads all records; the number of cells may differ between them. A malformed record carries its
/// fault (kParse at line:column) and what could be read of it, the others are not touched by it.
/// `name` stands for the file in diagnostics.
[[nodiscard]] Csv parse_csv(std::string_view text, std::string_view name);

/// The cell as it is written: in quotes where a comma, a quote, a line break, or white space at an
/// end asks for them.
[[nodiscard]] std::string csv_cell(std::string_view text);

}  // namespace orrery::base
