#include "plan/import/import_arguments.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "base/numbers.h"
#include "base/text.h"

namespace orrery::plan {
namespace {

struct Word {
  std::string text;
  std::uint32_t line = 1, column = 1;
  bool first = false;  // of its line
};

bool is_name(std::string_view text) {
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0 &&
         std::ranges::all_of(text, [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
         });
}

/// Words between white space. Quotes vanish, and so does their line's end; outside of them brackets
/// of arrays, `,` and `;` separate; `$(…)` stays one word.
class WordReader {
 public:
  explicit WordReader(std::string_view text) : text_(text) {}

  std::vector<Word> read() {
    while (at_ < text_.size()) step();
    close();
    return std::move(words_);
  }

 private:
  void step() {
    const char c = text_[at_];
    if (c == '\\' && at_ + 1 < text_.size() && (text_[at_ + 1] == '\n' || text_[at_ + 1] == '\r')) {
      close();
      advance(text_[at_ + 1] == '\r' && at_ + 2 < text_.size() ? 3 : 2, false);
    } else if (c == '#' && word_.text.empty()) {
      while (at_ < text_.size() && text_[at_] != '\n') advance(1, false);
    } else if (c == '$' && at_ + 1 < text_.size() && text_[at_ + 1] == '(') {
      substitution();
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0 || (quote_ == 0 && separates(c))) {
      close();
      if (c == '\n') quote_ = 0;
      advance(1, c == '\n');
    } else if (c == '"' || c == '\'') {
      if (quote_ == 0 || quote_ == c) quote_ = quote_ == 0 ? c : '\0';
      advance(1, false);
    } else {
      append();
    }
  }

  static bool separates(char c) { return c == '(' || c == ')' || c == ';' || c == ','; }

  void append() {
    if (word_.text.empty()) word_ = {{}, line_, column_, fresh_};
    word_.text += text_[at_];
    fresh_ = false;
    advance(1, false);
  }

  void substitution() {
    int depth = 0;
    do {
      if (text_[at_] == '(') ++depth;
      if (text_[at_] == ')') --depth;
      const bool dollar = text_[at_] == '$';
      append();
      if (depth == 0 && !dollar) return;
    } while (at_ < text_.size());
  }

  void close() {
    if (!word_.text.empty()) words_.push_back(std::exchange(word_, {}));
  }

  /// A continued line is the same line for `first`, but not for places.
  void advance(std::size_t count, bool line_ends) {
    for (; count > 0; --count, ++at_) {
      ++column_;
      if (text_[at_] == '\n') {
        ++line_;
        column_ = 1;
      }
    }
    fresh_ = fresh_ || line_ends;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1, column_ = 1;
  bool fresh_ = true;
  char quote_ = 0;  // the quotation mark that is open on this line
  Word word_;
  std::vector<Word> words_;
};

using Variables = std::map<std::string, std::string, std::less<>>;

/// `$NAME`, `${NAME}`, `${NAME:-word}`; what is not set stays.
std::string expand(std::string_view text, const Variables& variables) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const bool braces = text.substr(i).starts_with("${");
    if (text[i] != '$' || (braces && text.find('}', i) == text.npos)) {
      out += text[i++];
      continue;
    }
    std::size_t end = i + 1;
    std::string_view name, fallback;
    if (braces) {
      end = text.find('}', i) + 1;
      const std::string_view inner = text.substr(i + 2, end - i - 3);
      const std::size_t dash = inner.find('-');
      name = inner.substr(0, std::min(dash, inner.find(':')));
      if (dash != inner.npos) fallback = inner.substr(dash + 1);
    } else {
      while (end < text.size() && is_name(text.substr(i + 1, end - i))) ++end;
      name = text.substr(i + 1, end - i - 1);
    }
    const auto known = variables.find(name);
    if (known != variables.end()) {
      out += known->second;
    } else if (!fallback.empty()) {
      out += fallback;
    } else {
      out += text.substr(i, end - i);
    }
    i = end;
  }
  return out;
}

std::string plain_key(std::string_view text) {
  std::string key(text);
  std::ranges::replace(key, '_', '-');
  return key;
}

/// `key:` at the start of a line.
bool is_yaml_key(const Word& word) {
  if (!word.first || word.text.size() < 2 || word.text.back() != ':') return false;
  std::string name = word.text.substr(0, word.text.size() - 1);
  std::ranges::replace(name, '-', '_');
  return is_name(name);
}

}  // namespace

std::vector<Argument> read_arguments(std::string_view text, const std::string& name) {
  std::vector<Argument> arguments;
  Variables variables;
  bool open = false;  // the last argument may still take a value
  for (Word& word : WordReader(text).read()) {
    const std::size_t equals = word.text.find('=');
    if (equals != word.text.npos && is_name(std::string_view(word.text).substr(0, equals))) {
      const std::string value = expand(word.text.substr(equals + 1), variables);
      open = false;
      if (!value.starts_with("--")) {
        if (!value.empty()) variables[word.text.substr(0, equals)] = value;
        continue;
      }
      word.column += as_u32(equals + 1);
      word.text = value;
    }
    if (word.text.starts_with("--") && word.text.size() > 2) {
      const std::string body = word.text.substr(2);
      const std::size_t split = body.find('=');
      Argument argument{plain_key(body.substr(0, split)), {name, word.line, word.column}, {}};
      if (split != body.npos) argument.value = expand(body.substr(split + 1), variables);
      open = split == body.npos;
      arguments.push_back(std::move(argument));
    } else if (is_yaml_key(word)) {
      arguments.push_back({plain_key(word.text.substr(0, word.text.size() - 1)),
                           {name, word.line, word.column},
                           {}});
      open = true;
    } else if (open) {
      if (!word.first) arguments.back().value = expand(word.text, variables);
      open = false;
    }
  }
  // YAML's ways to say that a key has no value.
  std::erase_if(arguments, [](const Argument& a) {
    return a.value == "null" || a.value == "~" || a.value == "None";
  });
  return arguments;
}

ArgumentReader::ArgumentReader(std::vector<Argument> arguments, std::string file)
    : arguments_(std::move(arguments)), file_(std::move(file)) {}

const Argument* ArgumentReader::find(std::string_view key) const {
  const auto found = std::ranges::find(arguments_, key, &Argument::key);
  return found == arguments_.end() ? nullptr : &*found;
}

const Argument* ArgumentReader::take(std::string_view key) {
  const bool again = !asked_.emplace(key).second;
  const Argument* first = find(key);
  if (first == nullptr || again) return first;
  for (const Argument& other : arguments_) {
    if (other.key != key || other.value == first->value) continue;
    sink_.add(base::make_error(base::ErrorCode::kInconsistent, "--{} is given twice: {} and {}",
                               key, first->value, other.value)
                  .at(other.where)
                  .with_hint("keep the one that counts"));
    break;
  }
  return first;
}

base::SourceSpan ArgumentReader::where(std::string_view key) const {
  const Argument* argument = find(key);
  return argument == nullptr ? base::SourceSpan{file_, 0, 0} : argument->where;
}

std::optional<std::int64_t> ArgumentReader::integer(std::string_view key, std::int64_t low) {
  const Argument* argument = take(key);
  if (argument == nullptr) return std::nullopt;
  if (argument->unresolved()) {
    fault(key, base::ErrorCode::kBadValue, "write the number, or NAME=number in a line before it",
          "--{} is {}, which this file does not set", key, argument->value);
    return std::nullopt;
  }
  const auto value = base::parse_integer(argument->value);
  if (!value || *value < low || *value > (std::int64_t{1} << 32)) {
    fault(key, base::ErrorCode::kBadValue, fmt::format("a whole number from {} on", low),
          "--{} is '{}'", key, argument->value);
    return std::nullopt;
  }
  return *value;
}

std::optional<std::int64_t> ArgumentReader::resolved(std::string_view key) {
  const Argument* argument = take(key);
  return argument == nullptr || argument->unresolved() ? std::nullopt : integer(key);
}

std::optional<std::string> ArgumentReader::text(std::string_view key) {
  const Argument* argument = take(key);
  return argument == nullptr ? std::nullopt : std::optional(argument->value);
}

bool ArgumentReader::flag(std::string_view key) {
  const Argument* argument = take(key);
  return argument != nullptr && base::to_lower(argument->value) != "false";
}

std::vector<Argument> ArgumentReader::rest() const {
  std::vector<Argument> rest;
  for (const Argument& argument : arguments_) {
    if (asked_.contains(argument.key)) continue;
    if (std::ranges::find(rest, argument.key, &Argument::key) == rest.end())
      rest.push_back(argument);
  }
  return rest;
}

}  // namespace orrery::plan
