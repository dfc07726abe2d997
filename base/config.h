#pragma once
/// Strict reader of YAML and JSON files (JSON is read as YAML in flow style, so that every node
/// knows its place).
///
/// What is refused, each with file:line:column: duplicate keys, unknown keys, several documents,
/// truncated text, tabs used as indentation, anchors, aliases, tags, a quoted "8" where a number is
/// meant, a fraction where an integer is meant, numbers that overflow or are not finite, quantities
/// without a unit. Files named *.json must be valid JSON.
///
/// A reader reports every fault of a file:
///
///     Result<Link> read_link(const Node& node) {
///       ErrorSink sink;
///       Reader r(node, "link 'ib'", sink);
///       Link link{.latency = r.required_seconds("latency"),
///                 .lanes = r.optional_int("lanes", {1, 64}).value_or(1)};
///       r.finish();                          // unknown keys become faults, with "did you mean"
///       return sink.result(link);            // the link, or all the faults
///     }

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace orrery::base {

struct ConfigDocument;  // the parsed tree, in config_document.h
struct ConfigEntry;

/// Inclusive bounds.
struct IntRange {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};
struct DoubleRange {
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
};

/// One row of a table of names:
/// `constexpr Named<Op> kOps[] = {{"all_reduce", Op::kAllReduce}, …};`
template <class E>
struct Named {
  std::string_view name;
  E value;
};

/// Value of a document: null, scalar, list or object. A small handle that shares ownership of an
/// immutable tree; safe to copy and to read from several threads. A default-constructed Node is
/// *absent*: the answer to a read that already failed; a Reader over it reports nothing more.
class Node {
 public:
  enum class Kind { kAbsent, kNull, kScalar, kList, kObject };
  struct Member;

  /// Errors: kNotFound, kIo, kParse, kDuplicateKey, kUnsupported. All duplicate keys of a file are
  /// reported.
  [[nodiscard]] static Result<Node> parse_file(const std::filesystem::path& path);
  /// `name` stands for the file in diagnostics; JSON rules when it ends in ".json".
  [[nodiscard]] static Result<Node> parse_text(std::string_view text, std::string_view name);

  Node() = default;
  [[nodiscard]] Kind kind() const;
  [[nodiscard]] bool is_null() const { return kind() == Kind::kNull; }
  [[nodiscard]] bool is_scalar() const { return kind() == Kind::kScalar; }
  [[nodiscard]] bool is_list() const { return kind() == Kind::kList; }
  [[nodiscard]] bool is_object() const { return kind() == Kind::kObject; }
  /// A scalar that was quoted, so that it is text whatever it looks like.
  [[nodiscard]] bool is_quoted() const;
  /// A plain (unquoted) scalar that reads as a number.
  [[nodiscard]] bool is_number() const;
  [[nodiscard]] SourceSpan span() const;

  /// Entries of a list or members of an object; 0 for the rest.
  [[nodiscard]] std::size_t size() const;
  /// Entries of a list, in order; empty for the rest.
  [[nodiscard]] std::vector<Node> items() const;
  /// Members of an object in the order of the file; empty for the rest.
  [[nodiscard]] std::vector<Member> members() const;
  /// Value of a key, if this is an object that has it.
  [[nodiscard]] std::optional<Node> find(std::string_view key) const;

  /// Conversions of a scalar. Errors name the text and its place: kWrongType, kOutOfRange,
  /// kBadUnit.
  [[nodiscard]] Result<std::int64_t> as_int64(IntRange range = {}) const;
  [[nodiscard]] Result<double> as_double(DoubleRange range = {}) const;  ///< integers are accepted
  /// true or false, nothing else
  [[nodiscard]] Result<bool> as_bool() const;
  /// quoted, or plain text that is no number, bool or null
  [[nodiscard]] Result<std::string> as_string() const;
  [[nodiscard]] Result<Seconds> as_seconds() const;
  [[nodiscard]] Result<Bytes> as_bytes() const;
  [[nodiscard]] Result<BytesPerSecond> as_bandwidth() const;   ///< greater than zero
  [[nodiscard]] Result<FlopsPerSecond> as_flops_rate() const;  ///< greater than zero
  [[nodiscard]] Result<Watts> as_power() const;                ///< greater than zero

  /// "a list", "the number 8", "the text 'abc'", for diagnostics.
  [[nodiscard]] std::string describe() const;
  /// A fault at this node's place: `sink.add(node.error(ErrorCode::kInconsistent, "…"))`.
  template <class... Args>
  [[nodiscard]] Diagnostic error(ErrorCode code, fmt::format_string<Args...> format,
                                 Args&&... args) const {
    return make_error(code, format, std::forward<Args>(args)...).at(span());
  }

 private:
  Node(std::shared_ptr<const ConfigDocument> document, std::uint32_t index)
      : document_(std::move(document)), index_(index) {}
  [[nodiscard]] const ConfigEntry& entry() const;
  [[nodiscard]] const std::string& text() const;  ///< of a scalar; empty for the rest

  std::shared_ptr<const ConfigDocument> document_;
  std::uint32_t index_ = 0;
};

struct Node::Member {
  std::string key;
  SourceSpan key_span;
  Node value;
};

/// Reads one object by key and collects faults in `sink`. Each method states what it expects of the
/// key:
///
///   required_x(key)  the value; when absent or wrong, a fault is added and T{} returned
///   optional_x(key)  the value; nothing when absent or null; when wrong, a fault is added and
///                    nothing returned
///
/// `what` names the object in messages ("link 'ib'"). A node that is no object is one fault;
/// reading on is silent. Node and sink must outlive the reader; not thread-safe.
class Reader {
 public:
  Reader(Node node, std::string what, ErrorSink& sink);

  std::string required_string(std::string_view key);
  std::optional<std::string> optional_string(std::string_view key);
  std::int64_t required_int(std::string_view key, IntRange range = {});
  std::optional<std::int64_t> optional_int(std::string_view key, IntRange range = {});
  double required_double(std::string_view key, DoubleRange range = {});
  std::optional<double> optional_double(std::string_view key, DoubleRange range = {});
  bool required_bool(std::string_view key);
  std::optional<bool> optional_bool(std::string_view key);
  Seconds required_seconds(std::string_view key);
  std::optional<Seconds> optional_seconds(std::string_view key);
  Bytes required_bytes(std::string_view key);
  std::optional<Bytes> optional_bytes(std::string_view key);
  BytesPerSecond required_bandwidth(std::string_view key);
  std::optional<BytesPerSecond> optional_bandwidth(std::string_view key);
  FlopsPerSecond required_flops_rate(std::string_view key);
  std::optional<FlopsPerSecond> optional_flops_rate(std::string_view key);
  Watts required_power(std::string_view key);
  std::optional<Watts> optional_power(std::string_view key);
  /// Entries of a list (may be empty).
  std::vector<Node> required_list(std::string_view key);
  std::optional<std::vector<Node>> optional_list(std::string_view key);
  /// A list of strings, of integers, of doubles; every wrong entry is a fault.
  std::vector<std::string> required_strings(std::string_view key);
  std::vector<std::int64_t> required_ints(std::string_view key, IntRange range = {});
  std::vector<double> required_doubles(std::string_view key, DoubleRange range = {});
  /// A nested object; absent Node after a fault.
  Node required_object(std::string_view key);
  std::optional<Node> optional_object(std::string_view key);
  /// Any value, unchecked.
  Node required_node(std::string_view key);
  std::optional<Node> optional_node(std::string_view key);

  /// One name of a table of `Named<E>` (array, span or vector). Unknown names are kBadValue with
  /// "did you mean".
  template <class Table>
  auto required_enum(std::string_view key, const Table& table) {
    using E = decltype(std::begin(table)->value);
    const auto value = require(key) ? optional_enum(key, table) : std::nullopt;
    return value ? *value : E{};
  }
  template <class Table>
  auto optional_enum(std::string_view key, const Table& table) {
    using E = decltype(std::begin(table)->value);
    std::vector<std::string> names;
    for (const auto& row : table) names.emplace_back(row.name);
    const auto index = name_index(key, names);
    return index
               ? std::optional<E>((std::begin(table) + static_cast<std::ptrdiff_t>(*index))->value)
               : std::nullopt;
  }

  /// True when the key is there and not null. Does not count as reading it.
  [[nodiscard]] bool has(std::string_view key) const;
  /// Place of a key's value, or of the object when the key is absent: for faults the caller finds.
  [[nodiscard]] SourceSpan span(std::string_view key) const;
  /// Adds a fault at span(key).
  template <class... Args>
  void error(std::string_view key, ErrorCode code, fmt::format_string<Args...> format,
             Args&&... args) {
    sink_->error(span(key), code, format, std::forward<Args>(args)...);
  }
  /// The same, with a way out.
  template <class... Args>
  void fault(std::string_view key, ErrorCode code, std::string hint,
             fmt::format_string<Args...> format, Args&&... args) {
    sink_->add(make_error(code, format, std::forward<Args>(args)...)
                   .at(span(key))
                   .with_hint(std::move(hint)));
  }
  [[nodiscard]] ErrorSink& sink() { return *sink_; }

  /// Keys never asked for are not faults (files of others, such as Hugging Face's config.json).
  void allow_unknown() { allow_unknown_ = true; }
  /// A key that is known and deliberately not read.
  void ignore(std::string_view key) { known_.emplace(key); }
  /// Makes every key that no method asked for a fault. Call once, after the last read.
  void finish();

 private:
  std::optional<Node> lookup(std::string_view key);
  bool require(std::string_view key);
  std::optional<std::size_t> name_index(std::string_view key, std::span<const std::string> names);
  template <class T>
  std::optional<T> take(std::string_view key, Result<T> value);
  template <class T, class Convert>
  std::vector<T> list_of(std::string_view key, const Convert& convert);

  Node node_;
  std::string what_;
  ErrorSink* sink_;
  std::set<std::string, std::less<>> known_;
  bool allow_unknown_ = false;
};

}  // namespace orrery::base
