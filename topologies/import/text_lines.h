#pragma once
/// Words of a text with their places, for readers of other tools' formats.

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace orrery::topologies {

struct Word {
  std::string_view text;
  uint32_t line = 0, column = 0;  ///< 1-based, bytes
  base::SourceSpan place(std::string_view file) const { return {std::string(file), line, column}; }
};

/// Lines of words between blanks; empty lines are empty. Terminal colours (ESC [ ... m) count as
/// blanks. A line ends at LF or CR LF.
std::vector<std::vector<Word>> words_of_lines(std::string_view text);

}  // namespace orrery::topologies
