// Text to tree: libyaml's events into one flat array of nodes. The events carry what trees of YAML
// lose (quoting, duplicate keys, further documents), and the flat array needs no recursion to free.
#include <yaml.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/check.h"
#include "base/config_document.h"
#include "base/file.h"
#include "base/json.h"
#include "base/numbers.h"

namespace orrery::base {
namespace {

using enum ErrorCode;

constexpr std::size_t kMaxDepth = 200;

SourceSpan place(const std::string& name, const yaml_mark_t& mark) {
  return {name, as_u32(mark.line + 1), as_u32(mark.column + 1)};
}

/// libyaml's parser of one text, which must outlive it.
class EventStream {
 public:
  explicit EventStream(std::string_view text) : text_(text) {
    ORRERY_CHECK(yaml_parser_initialize(&parser_) != 0, "no memory for a parser of YAML");
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;
  ~EventStream() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }

  /// The next event, valid until the next call; nothing after a fault.
  const yaml_event_t* next() {
    yaml_event_delete(&event_);
    return yaml_parser_parse(&parser_, &event_) != 0 ? &event_ : nullptr;
  }

  /// The text ended within [ or {.
  [[nodiscard]] bool cut_off() const {
    const auto characters = std::ranges::count_if(
        text_, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; });
    return context().find("flow") != std::string_view::npos &&
           parser_.problem_mark.index >= static_cast<std::size_t>(characters);
  }
  /// What next() met.
  [[nodiscard]] Diagnostic fault(const std::string& name) const {
    if (parser_.error == YAML_READER_ERROR) {  // no characters, so no lines
      return make_error(kParse, "not text: {} at offset {}", parser_.problem,
                        parser_.problem_offset)
          .at({name, 0, 0});
    }
    return make_error(kParse, "not valid YAML: {}{}{}", parser_.problem,
                      context().empty() ? "" : " ", context())
        .at(place(name, parser_.problem_mark));
  }

 private:
  [[nodiscard]] std::string_view context() const {
    return parser_.context == nullptr ? "" : parser_.context;
  }

  std::string_view text_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
};

/// Builds the tree and collects faults. An object's children alternate key, value.
class TreeBuilder {
 public:
  TreeBuilder(ConfigDocument& document, ErrorSink& sink) : document_(document), sink_(sink) {}

  /// False where nothing more is to be read.
  bool take(const yaml_event_t& event) {
    switch (event.type) {
      case YAML_DOCUMENT_START_EVENT:
        if (document_.entries.empty()) return true;
        refuse(event, kParse, "a second document starts here; one file, one document");
        return false;
      case YAML_ALIAS_EVENT:
        refuse(event, kUnsupported, "aliases are not supported; write the value out");
        append(event, {.kind = Node::Kind::kNull});
        return true;
      case YAML_SCALAR_EVENT:
        refuse_properties(event, event.data.scalar.anchor, event.data.scalar.tag);
        append(event, scalar(event));
        return true;
      case YAML_SEQUENCE_START_EVENT:
        refuse_properties(event, event.data.sequence_start.anchor, event.data.sequence_start.tag);
        return open(event, Node::Kind::kList);
      case YAML_MAPPING_START_EVENT:
        refuse_properties(event, event.data.mapping_start.anchor, event.data.mapping_start.tag);
        return open(event, Node::Kind::kObject);
      case YAML_MAPPING_END_EVENT: check_keys(open_.back()); [[fallthrough]];
      case YAML_SEQUENCE_END_EVENT: open_.pop_back(); return true;
      default: return event.type != YAML_STREAM_END_EVENT;
    }
  }

  /// What the text ended within.
  [[nodiscard]] Diagnostic not_closed() const {
    const std::uint32_t innermost = open_.back();
    return make_error(kParse, "the {} that starts here is not closed",
                      document_.entries[innermost].kind == Node::Kind::kList ? "list" : "object")
        .at(document_.span(innermost));
  }

 private:
  static ConfigEntry scalar(const yaml_event_t& event) {
    const auto& value = event.data.scalar;
    std::string text(reinterpret_cast<const char*>(value.value), value.length);
    const bool plain = value.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain &&
        (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL"))
      return {.kind = Node::Kind::kNull};
    return {.kind = Node::Kind::kScalar, .quoted = !plain, .text = std::move(text)};
  }
  std::uint32_t append(const yaml_event_t& event, ConfigEntry entry) {
    const auto index = count_of(document_.entries);
    entry.line = as_u32(event.start_mark.line + 1);
    entry.column = as_u32(event.start_mark.column + 1);
    if (!open_.empty()) {
      auto& siblings = document_.entries[open_.back()].children;
      // An absent value has no place of its own: take that of the key.
      if (event.type == YAML_SCALAR_EVENT && event.start_mark.index == event.end_mark.index &&
          !siblings.empty()) {
        entry.line = document_.entries[siblings.back()].line;
        entry.column = document_.entries[siblings.back()].column;
      }
      siblings.push_back(index);
    }
    document_.entries.push_back(std::move(entry));
    return index;
  }
  bool open(const yaml_event_t& event, Node::Kind kind) {
    open_.push_back(append(event, {.kind = kind}));
    if (open_.size() > kMaxDepth) refuse(event, kParse, "nested too deeply");
    return open_.size() <= kMaxDepth;
  }
  void refuse(const yaml_event_t& event, ErrorCode code, std::string_view why) {
    sink_.error(place(document_.name, event.start_mark), code, "{}", why);
  }
  void refuse_properties(const yaml_event_t& event, const yaml_char_t* anchor,
                         const yaml_char_t* tag) {
    if (anchor != nullptr)
      refuse(event, kUnsupported, "anchors are not supported; write the value out");
    if (tag != nullptr)
      refuse(event, kUnsupported,
             fmt::format("the tag '{}' is not supported", reinterpret_cast<const char*>(tag)));
  }
  void check_keys(std::uint32_t object) {
    const auto& children = document_.entries[object].children;
    std::map<std::string_view, std::uint32_t> first;
    for (std::size_t i = 0; i + 1 < children.size(); i += 2) {
      const auto& key = document_.entries[children[i]];
      const SourceSpan where = document_.span(children[i]);
      if (key.kind != Node::Kind::kScalar) {
        sink_.error(where, kWrongType, "a key must be text");
        continue;
      }
      const auto [previous, fresh] = first.emplace(key.text, children[i]);
      if (fresh) continue;
      Diagnostic duplicate =
          make_error(kDuplicateKey, "key '{}' is stated twice", key.text).at(where);
      const SourceSpan earlier = document_.span(previous->second);
      duplicate.notes.push_back(
          fmt::format("first stated at {}:{}:{}", earlier.file, earlier.line, earlier.column));
      sink_.add(std::move(duplicate));
    }
  }

  ConfigDocument& document_;
  ErrorSink& sink_;
  std::vector<std::uint32_t> open_;
};

/// Tabs in the indentation of block YAML, which has no place for them: libyaml's fault does not
/// name what nobody sees. Flow text (JSON) does not depend on indentation.
void refuse_tabs(std::string_view text, const std::string& name, ErrorSink& sink) {
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos || text[start] == '{' || text[start] == '[') return;
  std::uint32_t line = 1;
  for (std::size_t begin = 0; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view row = text.substr(begin, end - begin);
    const std::size_t indent = row.find_first_not_of(' ');
    if (indent != std::string_view::npos && row[indent] == '\t' &&
        row.find_first_not_of(" \t\r") != row.npos) {
      sink.error({name, line, as_u32(indent + 1)}, kParse, "tab in the indentation; use spaces");
    }
    begin = end + 1;
  }
}

}  // namespace

Result<Node> Node::parse_file(const std::filesystem::path& path) {
  TRY(const std::string text, read_file(path));
  return parse_text(text, path.string());
}

Result<Node> Node::parse_text(std::string_view text, std::string_view name) {
  auto document = std::make_shared<ConfigDocument>();
  document->name = std::string(name);
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);  // byte order mark of UTF-8
  if (name.ends_with(".json") && !Json::accept(text)) TRY_VOID(parse_json(text, name));

  ErrorSink sink;
  refuse_tabs(text, document->name, sink);
  if (!sink.ok()) return fail(sink.diagnostics());
  EventStream events(text);
  TreeBuilder builder(*document, sink);
  const yaml_event_t* event = events.next();
  while (event != nullptr && builder.take(*event)) event = events.next();
  if (event == nullptr)
    sink.add(events.cut_off() ? builder.not_closed() : events.fault(document->name));
  if (event != nullptr && document->entries.empty())
    sink.error({document->name, 1, 1}, kParse, "the file is empty");
  return sink.result(Node(std::move(document), 0));
}

}  // namespace orrery::base
