#pragma once
/// \file
/// What fits on a terminal, and a line on it that says how far a search is.
#include <string>
#include <string_view>

#include "cli/text/show.h"

namespace orrery::cli {

/// Columns of the terminal that standard output is; 100 where it is none, so that a file holds the
/// same text whoever makes it.
std::size_t terminal_columns();

/// The text, or its beginning and "…", in at most so many columns. @pre columns > 0.
std::string cut_to(std::string_view text, std::size_t columns);

/// One line on a terminal, after half a second: rate, incumbent, bound. A command that searches
/// more than once has its searches counted.
class ProgressLine {
 public:
  void operator()(const search::Progress& p);
  /// Wipes the line; before anything else is printed.
  void clear();

 private:
  Stopwatch watch_, search_watch_;
  std::uint64_t done_ = 0;
  int searches_ = 1;
  bool shown_ = false;
};

}  // namespace orrery::cli
