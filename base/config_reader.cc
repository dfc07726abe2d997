#include <algorithm>

#include "base/config.h"
#include "base/numbers.h"
#include "base/text.h"

namespace orrery::base {

using enum ErrorCode;

Reader::Reader(Node node, std::string what, ErrorSink& sink)
    : node_(std::move(node)), what_(std::move(what)), sink_(&sink) {
  if (node_.kind() == Node::Kind::kAbsent || node_.is_object()) return;
  sink_->add(node_.error(kWrongType, "{} must be an object, found {}", what_, node_.describe()));
  node_ = Node();
}

/// The value of a key; nothing when absent or null. Marks the key as known.
std::optional<Node> Reader::lookup(std::string_view key) {
  known_.emplace(key);
  auto found = node_.find(key);
  if (found && found->is_null()) return std::nullopt;
  return found;
}

/// Adds the fault when a required key is absent or null. An absent object is silent: its own fault
/// was reported.
bool Reader::require(std::string_view key) {
  if (lookup(key)) return true;
  if (node_.kind() != Node::Kind::kAbsent) {
    sink_->error(span(key), kMissingKey, "{} has no '{}'", what_, key);
  }
  return false;
}

template <class T>
std::optional<T> Reader::take(std::string_view key, Result<T> value) {
  if (value) return *std::move(value);
  for (Diagnostic& diagnostic : value.error()) {
    diagnostic.message = fmt::format("'{}' of {}: {}", key, what_, diagnostic.message);
    sink_->add(std::move(diagnostic));
  }
  return std::nullopt;
}

std::optional<std::size_t> Reader::name_index(std::string_view key,
                                              std::span<const std::string> names) {
  const auto node = lookup(key);
  if (!node) return std::nullopt;
  const auto name = take(key, node->as_string());
  if (!name) return std::nullopt;
  const auto found = std::ranges::find(names, *name);
  if (found != names.end()) return as_index(found - names.begin());
  Diagnostic unknown = node->error(kBadValue, "'{}' of {}: unknown value '{}'", key, what_, *name);
  unknown.hint = did_you_mean(*name, names, "values");
  sink_->add(std::move(unknown));
  return std::nullopt;
}

#define ORRERY_READ_(Type, name, conversion)                              \
  std::optional<Type> Reader::optional_##name(std::string_view key) {     \
    const auto node = lookup(key);                                        \
    return node ? take(key, node->conversion()) : std::nullopt;           \
  }                                                                       \
  Type Reader::required_##name(std::string_view key) {                    \
    return require(key) ? optional_##name(key).value_or(Type{}) : Type{}; \
  }
ORRERY_READ_(std::string, string, as_string)
ORRERY_READ_(bool, bool, as_bool)
ORRERY_READ_(Seconds, seconds, as_seconds)
ORRERY_READ_(Bytes, bytes, as_bytes)
ORRERY_READ_(BytesPerSecond, bandwidth, as_bandwidth)
ORRERY_READ_(FlopsPerSecond, flops_rate, as_flops_rate)
ORRERY_READ_(Watts, power, as_power)
#undef ORRERY_READ_

std::optional<std::int64_t> Reader::optional_int(std::string_view key, IntRange range) {
  const auto node = lookup(key);
  return node ? take(key, node->as_int64(range)) : std::nullopt;
}
std::int64_t Reader::required_int(std::string_view key, IntRange range) {
  return require(key) ? optional_int(key, range).value_or(0) : 0;
}

std::optional<double> Reader::optional_double(std::string_view key, DoubleRange range) {
  const auto node = lookup(key);
  return node ? take(key, node->as_double(range)) : std::nullopt;
}
double Reader::required_double(std::string_view key, DoubleRange range) {
  return require(key) ? optional_double(key, range).value_or(0.0) : 0.0;
}

std::optional<std::vector<Node>> Reader::optional_list(std::string_view key) {
  const auto node = lookup(key);
  if (!node) return std::nullopt;
  if (node->is_list()) return node->items();
  sink_->add(node->error(kWrongType, "'{}' of {}: expected a list, found {}", key, what_,
                         node->describe()));
  return std::nullopt;
}
std::vector<Node> Reader::required_list(std::string_view key) {
  return require(key) ? optional_list(key).value_or(std::vector<Node>{}) : std::vector<Node>{};
}

template <class T, class Convert>
std::vector<T> Reader::list_of(std::string_view key, const Convert& convert) {
  std::vector<T> out;
  for (const Node& node : required_list(key))
    out.push_back(take<T>(key, convert(node)).value_or(T{}));
  return out;
}
std::vector<std::string> Reader::required_strings(std::string_view key) {
  return list_of<std::string>(key, [](const Node& n) { return n.as_string(); });
}
std::vector<std::int64_t> Reader::required_ints(std::string_view key, IntRange range) {
  return list_of<std::int64_t>(key, [&](const Node& n) { return n.as_int64(range); });
}
std::vector<double> Reader::required_doubles(std::string_view key, DoubleRange range) {
  return list_of<double>(key, [&](const Node& n) { return n.as_double(range); });
}

std::optional<Node> Reader::optional_object(std::string_view key) {
  const auto node = lookup(key);
  if (!node || node->is_object()) return node;
  sink_->add(node->error(kWrongType, "'{}' of {}: expected an object, found {}", key, what_,
                         node->describe()));
  return std::nullopt;
}
Node Reader::required_object(std::string_view key) {
  return require(key) ? optional_object(key).value_or(Node()) : Node();
}

std::optional<Node> Reader::optional_node(std::string_view key) { return lookup(key); }
Node Reader::required_node(std::string_view key) {
  return require(key) ? lookup(key).value_or(Node()) : Node();
}

bool Reader::has(std::string_view key) const {
  const auto node = node_.find(key);
  return node && !node->is_null();
}

SourceSpan Reader::span(std::string_view key) const {
  const auto node = node_.find(key);
  return node ? node->span() : node_.span();
}

void Reader::finish() {
  if (allow_unknown_) return;
  const std::vector<std::string> known(known_.begin(), known_.end());
  for (const auto& member : node_.members()) {
    if (known_.contains(member.key)) continue;
    sink_->add(make_error(kUnknownKey, "unknown key '{}' in {}", member.key, what_)
                   .at(member.key_span)
                   .with_hint(did_you_mean(member.key, known)));
  }
}

}  // namespace orrery::base
