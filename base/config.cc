#include "base/config.h"

#include <algorithm>

#include "base/check.h"
#include "base/config_document.h"
#include "base/text.h"

namespace orrery::base {
namespace {

using enum ErrorCode;

/// Gives a fault without a place the place of the node it came from.
template <class T>
Result<T> located(Result<T> result, const SourceSpan& where) {
  if (!result) {
    for (Diagnostic& diagnostic : result.error()) {
      if (diagnostic.where.file.empty()) diagnostic.where = where;
    }
  }
  return result;
}

/// YAML allows a leading '+', our number parsers do not.
std::string_view without_plus(std::string_view text) {
  return text.starts_with('+') ? text.substr(1) : text;
}

/// "010" is 8 to YAML 1.1 and 10 to YAML 1.2.
bool has_leading_zero(std::string_view text) {
  text = without_plus(text);
  if (text.starts_with('-')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

template <class T>
Result<T> in_range(const Node& node, T value, auto range) {
  if (value < range.min)
    return fail(node.error(kOutOfRange, "{} is less than {}", value, range.min));
  if (value > range.max)
    return fail(node.error(kOutOfRange, "{} is more than {}", value, range.max));
  return value;
}

}  // namespace

const ConfigEntry& Node::entry() const { return document_->entries[index_]; }

const std::string& Node::text() const {
  static const std::string kNone;
  return is_scalar() ? entry().text : kNone;
}

Node::Kind Node::kind() const { return document_ ? entry().kind : Kind::kAbsent; }

bool Node::is_quoted() const { return is_scalar() && entry().quoted; }

bool Node::is_number() const {
  return is_scalar() && !is_quoted() && parse_real(without_plus(text())).has_value();
}

SourceSpan Node::span() const { return document_ ? document_->span(index_) : SourceSpan{}; }

std::size_t Node::size() const {
  if (is_list()) return entry().children.size();
  if (is_object()) return entry().children.size() / 2;
  return 0;
}

std::vector<Node> Node::items() const {
  std::vector<Node> out;
  if (!is_list()) return out;
  for (const std::uint32_t child : entry().children) out.push_back(Node(document_, child));
  return out;
}

std::vector<Node::Member> Node::members() const {
  std::vector<Member> out;
  if (!is_object()) return out;
  const auto& children = entry().children;
  for (std::size_t i = 0; i + 1 < children.size(); i += 2) {
    out.push_back({document_->entries[children[i]].text, document_->span(children[i]),
                   Node(document_, children[i + 1])});
  }
  return out;
}

std::optional<Node> Node::find(std::string_view key) const {
  if (!is_object()) return std::nullopt;
  const auto& children = entry().children;
  for (std::size_t i = 0; i + 1 < children.size(); i += 2) {
    if (document_->entries[children[i]].text == key) return Node(document_, children[i + 1]);
  }
  return std::nullopt;
}

std::string Node::describe() const {
  switch (kind()) {
    case Kind::kAbsent: return "nothing";
    case Kind::kNull: return "null";
    case Kind::kList: return "a list";
    case Kind::kObject: return "an object";
    case Kind::kScalar: break;
  }
  std::string shown = text();
  constexpr std::size_t kLongest = 60;
  if (shown.size() > kLongest) shown = shown.substr(0, kLongest) + "…";
  if (is_quoted()) return fmt::format("the quoted text \"{}\"", shown);
  return fmt::format("{} '{}'", is_number() ? "the number" : "the text", shown);
}

Result<std::int64_t> Node::as_int64(IntRange range) const {
  if (!is_number()) return fail(error(kWrongType, "expected an integer, found {}", describe()));
  const std::string& plain = text();
  if (has_leading_zero(plain)) return fail(error(kWrongType, "{} has a leading zero", describe()));
  const auto value = parse_integer(without_plus(plain));
  if (!value) {
    if (plain.find_first_not_of("+-0123456789") != std::string::npos) {
      return fail(error(kWrongType, "expected an integer, found {}", describe()));
    }
    return fail(error(kOutOfRange, "{} does not fit in 64 bits", describe()));
  }
  return in_range<std::int64_t>(*this, *value, range);
}

Result<double> Node::as_double(DoubleRange range) const {
  if (!is_scalar() || is_quoted())
    return fail(error(kWrongType, "expected a number, found {}", describe()));
  const auto value = parse_real(without_plus(text()));
  if (!value) return fail(error(kWrongType, "expected a finite number, found {}", describe()));
  return in_range<double>(*this, *value, range);
}

Result<bool> Node::as_bool() const {
  if (!is_quoted() && (text() == "true" || text() == "false")) return text() == "true";
  return fail(error(kWrongType, "expected true or false, found {}", describe()));
}

Result<std::string> Node::as_string() const {
  if (is_quoted() || (is_scalar() && !is_number() && text() != "true" && text() != "false"))
    return text();
  Diagnostic wrong = error(kWrongType, "expected text, found {}", describe());
  if (is_scalar()) wrong.hint = "put it in quotes";
  return fail(std::move(wrong));
}

namespace {

/// Quantities are text with a unit, quoted or not.
template <class Q>
Result<Q> as_quantity(const Node& node, const std::string& text, std::string_view dimension,
                      Result<Q> (*parse)(std::string_view)) {
  if (!node.is_scalar())
    return fail(node.error(kWrongType, "expected a {}, found {}", dimension, node.describe()));
  return located(parse(text), node.span());
}

template <class Q>
Result<Q> positive(Result<Q> value, const Node& node) {
  if (value && !(value->raw() > 0))
    return fail(node.error(kOutOfRange, "{} is not more than zero", node.describe()));
  return value;
}

}  // namespace

Result<Seconds> Node::as_seconds() const {
  return as_quantity(*this, text(), "time", parse_seconds);
}
Result<Bytes> Node::as_bytes() const { return as_quantity(*this, text(), "size", parse_bytes); }
Result<BytesPerSecond> Node::as_bandwidth() const {
  return positive(as_quantity(*this, text(), "bandwidth", parse_bandwidth), *this);
}
Result<FlopsPerSecond> Node::as_flops_rate() const {
  return positive(as_quantity(*this, text(), "compute rate", parse_flops_rate), *this);
}
Result<Watts> Node::as_power() const {
  return positive(as_quantity(*this, text(), "power", parse_power), *this);
}

}  // namespace orrery::base
