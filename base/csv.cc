#include "base/csv.h"

#include <utility>

#include "base/numbers.h"

namespace orrery::base {
namespace {

class CsvReader {
 public:
  CsvReader(std::string_view text, std::string_view name) : text_(text), name_(name) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text_.starts_with(kByteOrderMark)) at_ = line_begin_ = kByteOrderMark.size();
  }

  Csv run() {
    while (at_ < text_.size()) {
      if (skip_line_end()) continue;  // a line without any character
      record_ = {.cells = {}, .line = line_, .fault = {}};
      read_record();
      csv_.records.push_back(std::move(record_));
    }
    return std::move(csv_);
  }

 private:
  [[nodiscard]] std::uint32_t column() const { return as_u32(at_ - line_begin_ + 1); }

  void fault(std::uint32_t line, std::uint32_t column, std::string message, std::string hint) {
    if (record_.fault) return;  // what follows the first is guesswork
    record_.fault = Diagnostic{.code = ErrorCode::kParse,
                               .message = std::move(message),
                               .where = {std::string(name_), line, column},
                               .hint = std::move(hint)};
  }

  void next_line(std::size_t begin) {
    ++line_;
    line_begin_ = begin;
  }

  /// Passes LF or CRLF. False: there is none here.
  bool skip_line_end() {
    if (at_ >= text_.size()) return false;
    const bool crlf = text_.substr(at_).starts_with("\r\n");
    if (!crlf && text_[at_] != '\n') return false;
    if (line_ == 1 && crlf) csv_.line_end = "\r\n";
    at_ += crlf ? 2 : 1;
    next_line(at_);
    return true;
  }

  void read_record() {
    for (;;) {
      record_.cells.push_back({.text = {}, .line = line_, .column = column()});
      if (at_ < text_.size() && text_[at_] == '"')
        read_quoted(record_.cells.back());
      else
        read_plain(record_.cells.back());
      if (at_ >= text_.size() || skip_line_end()) return;
      ++at_;  // the comma
    }
  }

  [[nodiscard]] bool at_end_of_cell() const {
    return at_ >= text_.size() || text_[at_] == ',' || text_[at_] == '\n' ||
           text_.substr(at_).starts_with("\r\n");
  }

  void read_plain(CsvCell& cell) {
    for (; !at_end_of_cell(); ++at_) {
      if (text_[at_] == '"')
        fault(line_, column(), "a quote inside a cell that does not begin with one",
              "put the whole cell in quotes, and double the quotes in it");
      cell.text += text_[at_];
    }
  }

  void read_quoted(CsvCell& cell) {
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        if (at_ < text_.size() && text_[at_] == '"') {
          cell.text += '"';
          continue;
        }
        if (!at_end_of_cell())
          fault(line_, column(), "text after the closing quote of a cell",
                "double the quotes inside a quoted cell");
        return read_plain(cell);
      }
      cell.text += c;
      if (c == '\n') next_line(at_ + 1);
    }
    fault(cell.line, cell.column, "a quoted cell that never ends",
          "close it with a quote, or double the quotes inside it");
  }

  std::string_view text_, name_;
  std::size_t at_ = 0, line_begin_ = 0;
  std::uint32_t line_ = 1;
  CsvRecord record_;
  Csv csv_;
};

}  // namespace

Csv parse_csv(std::string_view text, std::string_view name) { return CsvReader(text, name).run(); }

std::string csv_cell(std::string_view text) {
  const bool spaced = !text.empty() && (text.front() == ' ' || text.back() == ' ' ||
                                        text.front() == '\t' || text.back() == '\t');
  if (!spaced && text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace orrery::base
