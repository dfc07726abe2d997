#include "cli/text/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/numbers.h"

namespace orrery::cli {

std::size_t terminal_columns() {
  constexpr std::size_t kElsewhere = 100;
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 ||
      size.ws_col == 0)
    return kElsewhere;
  return size.ws_col;
}

std::string cut_to(std::string_view text, std::size_t columns) {
  const auto starts = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
  std::size_t seen = 0, end = 0;  // end: where the last column begins that "…" may take
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!starts(text[i])) continue;
    if (++seen == columns) end = i;
    if (seen > columns) return std::string(text.substr(0, end)) + "…";
  }
  return std::string(text);
}

namespace {

void show(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

void ProgressLine::operator()(const search::Progress& p) {
  if (p.done < done_) {
    ++searches_;
    search_watch_ = {};
  }
  done_ = p.done;
  if (watch_.seconds() < 0.5 || isatty(STDERR_FILENO) == 0) return;
  const auto known = [](std::int64_t ps) { return ps > 0 ? show_time(ps) : "-"; };
  const std::string line =
      fmt::format("{}{} of {} {}, {:.0f}/s, best {}, bound {}",
                  searches_ > 1 ? fmt::format("search {}: ", searches_) : "", p.done, p.total, p.of,
                  real(p.done) / std::max(search_watch_.seconds(), 1e-3), known(p.incumbent_ps),
                  known(p.bound_ps));
  show(fmt::format("\r{:<79}", cut_to(line, 79)));
  shown_ = true;
}

void ProgressLine::clear() {
  if (shown_) show(fmt::format("\r{:79}\r", ""));
  shown_ = false;
}

}  // namespace orrery::cli
