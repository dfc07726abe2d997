#include "plan/import/toml.h"

#include <algorithm>
#include <set>

#include "base/numbers.h"
#include "base/text.h"

namespace orrery::plan {
namespace {

using enum base::ErrorCode;

constexpr int kDeepest = 16;  // arrays in arrays

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

class TomlReader {
 public:
  TomlReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  base::Result<std::vector<TomlEntry>> read() {
    std::string section;
    for (skip_lines(); !at_end(); skip_lines()) {
      if (peek() == '[') {
        TRY(section, header());
      } else {
        TRY(TomlEntry entry, key_and_value(section));
        if (!seen_.insert(section + "]" + entry.key).second)
          return base::fail_at(entry.where, kDuplicateKey, "key '{}' stands twice", entry.key);
        entries_.push_back(std::move(entry));
      }
      TRY_VOID(line_end());
    }
    return std::move(entries_);
  }

 private:
  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  [[nodiscard]] base::SourceSpan here() const { return {name_, line_, column_}; }

  void advance() {
    ++column_;
    if (text_[at_++] == '\n') {
      ++line_;
      column_ = 1;
    }
  }
  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t') advance();
  }
  void skip_comment() {
    if (peek() != '#') return;
    while (!at_end() && peek() != '\n') advance();
  }
  /// Blanks, comments and ends of lines.
  void skip_lines() {
    for (skip_blanks(); peek() == '#' || peek() == '\n' || peek() == '\r'; skip_blanks()) {
      if (peek() == '#') {
        skip_comment();
      } else {
        advance();
      }
    }
  }

  template <class... Args>
  [[nodiscard]] tl::unexpected<base::Diagnostics> fault(base::ErrorCode code,
                                                        fmt::format_string<Args...> format,
                                                        Args&&... args) const {
    return base::fail(base::make_error(code, format, std::forward<Args>(args)...).at(here()));
  }

  base::Result<void> line_end() {
    skip_blanks();
    skip_comment();
    if (peek() == '\r') advance();
    if (!at_end() && peek() != '\n') return fault(kParse, "the line ends here, or has a comment");
    return {};
  }

  base::Result<std::string> bare_key() {
    std::string key;
    while (is_bare(peek())) {
      key += peek();
      advance();
    }
    if (!key.empty()) return key;
    if (peek() == '"' || peek() == '\'') return fault(kUnsupported, "quoted keys are not read");
    return fault(kParse, "a key, or a [section]");
  }

  /// "[a.b]"
  base::Result<std::string> header() {
    const base::SourceSpan where = here();
    if (peek(1) == '[') return fault(kUnsupported, "arrays of tables are not read");
    std::string section;
    do {
      advance();
      skip_blanks();
      TRY(const std::string part, bare_key());
      section += (section.empty() ? "" : ".") + part;
      skip_blanks();
    } while (peek() == '.');
    if (peek() != ']') return fault(kParse, "a section ends with ']'");
    advance();
    if (!seen_.insert(section).second)
      return base::fail_at(where, kDuplicateKey, "section '{}' stands twice", section);
    return section;
  }

  base::Result<TomlEntry> key_and_value(const std::string& section) {
    TomlEntry entry{section, {}, here(), {}};
    TRY(entry.key, bare_key());
    skip_blanks();
    if (peek() == '.') return fault(kUnsupported, "dotted keys are not read: use a section");
    if (peek() != '=') return fault(kParse, "'=' and a value follow a key");
    advance();
    skip_blanks();
    TRY(entry.value, value(0));
    return entry;
  }

  base::Result<TomlValue> value(int depth) {
    TomlValue value;
    value.where = here();
    switch (peek()) {
      case '"':
      case '\'': return string();
      case '[': return array(depth);
      case '{': return fault(kUnsupported, "inline tables are not read: use a section");
      default: break;
    }
    while (is_bare(peek()) || peek() == '+' || peek() == '.' || peek() == ':') {
      value.text += peek();
      advance();
    }
    return plain(std::move(value));
  }

  /// A number or a bool. Underscores stand between digits.
  base::Result<TomlValue> plain(TomlValue value) const {
    using enum TomlValue::Kind;
    if (value.text == "true" || value.text == "false") {
      value.kind = kBool;
      return value;
    }
    std::string digits = value.text;
    if (digits.starts_with('+')) digits.erase(0, 1);
    if (digits.find("__") == digits.npos && !digits.starts_with('_') && !digits.ends_with('_'))
      std::erase(digits, '_');
    if (base::parse_integer(digits)) {
      value.kind = kInteger;
    } else if (base::parse_real(digits)) {
      value.kind = kReal;
    } else {
      if (value.text.empty()) return base::fail_at(value.where, kParse, "a value is missing");
      return base::fail_at(value.where, kParse,
                           "'{}' is none of \"text\", a decimal number, true, false and [ ]",
                           value.text);
    }
    value.text = digits;
    return value;
  }

  base::Result<TomlValue> string() {
    TomlValue value;
    value.where = here();
    const char quote = peek();
    if (peek(1) == quote && peek(2) == quote)
      return fault(kUnsupported, "strings of several lines are not read");
    advance();
    while (peek() != quote) {
      if (at_end() || peek() == '\n') return fault(kParse, "a string ends on its line");
      if (quote == '"' && peek() == '\\') {
        advance();
        constexpr std::string_view kLetters = "\"\\nt", kMeaning = "\"\\\n\t";
        const std::size_t letter = at_end() ? kLetters.npos : kLetters.find(peek());
        if (letter == kLetters.npos)
          return fault(kUnsupported, "of escapes \\\", \\\\, \\n and \\t are read");
        value.text += kMeaning[letter];
      } else {
        value.text += peek();
      }
      advance();
    }
    advance();
    return value;
  }

  base::Result<TomlValue> array(int depth) {
    TomlValue list;
    list.kind = TomlValue::Kind::kArray;
    list.where = here();
    if (depth == kDeepest) return fault(kUnsupported, "arrays {} deep", kDeepest);
    advance();
    for (skip_lines(); peek() != ']'; skip_lines()) {
      TRY(TomlValue item, value(depth + 1));
      list.items.push_back(std::move(item));
      skip_lines();
      if (peek() == ',') {
        advance();
      } else if (peek() != ']') {
        return fault(kParse, "',' or ']' follows an item");
      }
    }
    advance();
    return list;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1, column_ = 1;
  std::set<std::string> seen_;  // sections, and "section]key"
  std::vector<TomlEntry> entries_;
};

}  // namespace

base::Result<std::vector<TomlEntry>> read_toml(std::string_view text, const std::string& name) {
  return TomlReader(text, name).read();
}

}  // namespace orrery::plan
