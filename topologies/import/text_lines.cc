#include "topologies/import/text_lines.h"

#include "base/numbers.h"

namespace orrery::topologies {

namespace {

/// Length of a colour sequence at `at`, or 0.
size_t colour_length(std::string_view line, size_t at) {
  if (line[at] != '\x1b' || at + 1 >= line.size() || line[at + 1] != '[') return 0;
  const size_t end = line.find('m', at);
  return end == std::string_view::npos ? 0 : end - at + 1;
}

}  // namespace

std::vector<std::vector<Word>> words_of_lines(std::string_view text) {
  std::vector<std::vector<Word>> lines;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    std::vector<Word>& words = lines.emplace_back();
    size_t start = std::string_view::npos;
    for (size_t i = 0; i <= line.size(); ++i) {
      const size_t colour = i < line.size() ? colour_length(line, i) : 0;
      const bool blank =
          i == line.size() || colour > 0 || line[i] == ' ' || line[i] == '\t' || line[i] == '\r';
      if (!blank && start == std::string_view::npos) start = i;
      if (blank && start != std::string_view::npos) {
        words.push_back({line.substr(start, i - start), count_of(lines), as_u32(start + 1)});
        start = std::string_view::npos;
      }
      if (colour > 0) i += colour - 1;
    }
    begin = end + 1;
  }
  return lines;
}

}  // namespace orrery::topologies
