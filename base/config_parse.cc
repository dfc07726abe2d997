// Text to tree: yaml-cpp's event stream into one flat array of nodes. The events carry what
// yaml-cpp's own tree loses or hides (quoting, duplicate keys, further documents), and the flat
// array needs no recursion to free.
#include "base/config_document.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "base/file.h"
#include "base/json.h"
#include "base/numbers.h"

namespace orrery::base {
namespace {

using enum ErrorCode;

constexpr std::uint32_t kMaxDepth = 200;

SourceSpan place(const std::string& name, const YAML::Mark& mark) {
  if (mark.is_null()) return {name, 0, 0};
  return {name, as_u32(mark.line + 1), as_u32(mark.column + 1)};
}

/// Builds the tree and collects faults. An object's children alternate key, value.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(ConfigDocument& document, ErrorSink& sink) : document_(document), sink_(sink) {}

  void OnDocumentStart(const YAML::Mark& mark) override { start_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_properties(mark, anchor, {});
    append(mark, {.kind = Node::Kind::kNull});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "aliases are not supported; write the value out");
    append(mark, {.kind = Node::Kind::kNull});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_properties(mark, anchor, tag);
    append(mark, {.kind = Node::Kind::kScalar, .quoted = tag == "!", .text = value});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    refuse_properties(mark, anchor, tag);
    open(append(mark, {.kind = Node::Kind::kList}));
  }
  void OnSequenceEnd() override { open_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    refuse_properties(mark, anchor, tag);
    open(append(mark, {.kind = Node::Kind::kObject}));
  }
  void OnMapEnd() override {
    check_keys(open_.back());
    open_.pop_back();
  }

  [[nodiscard]] const YAML::Mark& start() const { return start_; }
  /// The innermost list or object that has begun and not ended.
  [[nodiscard]] std::optional<std::uint32_t> innermost_open() const {
    return open_.empty() ? std::nullopt : std::optional(open_.back());
  }

 private:
  std::uint32_t append(const YAML::Mark& mark, ConfigEntry entry) {
    const auto index = count_of(document_.entries);
    entry.line = place("", mark).line;
    entry.column = place("", mark).column;
    if (!open_.empty()) {
      auto& siblings = document_.entries[open_.back()].children;
      // yaml-cpp gives no place to some absent values: take that of the key.
      if (entry.line == 0 && !siblings.empty()) {
        entry.line = document_.entries[siblings.back()].line;
        entry.column = document_.entries[siblings.back()].column;
      }
      siblings.push_back(index);
    }
    document_.entries.push_back(std::move(entry));
    return index;
  }
  void open(std::uint32_t index) {
    open_.push_back(index);
    if (open_.size() > kMaxDepth)
      throw YAML::ParserException(YAML::Mark::null_mark(), "nested too deeply");
  }
  void refuse(const YAML::Mark& mark, std::string_view why) {
    sink_.error(place(document_.name, mark), kUnsupported, "{}", why);
  }
  void refuse_properties(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag) {
    if (anchor != YAML::NullAnchor) refuse(mark, "anchors are not supported; write the value out");
    if (!tag.empty() && tag != "?" && tag != "!")
      refuse(mark, fmt::format("the tag '{}' is not supported", tag));
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
  YAML::Mark start_;
  std::vector<std::uint32_t> open_;
};

/// Tabs in the indentation of block YAML: yaml-cpp counts a tab as one column, an editor as eight,
/// and the file then says something else than it shows. Flow text (JSON) does not depend on
/// indentation.
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
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return fail_at({document->name, 0, 0}, kParse, "not text: zero byte at offset {}", zero);
  }
  if (name.ends_with(".json")) TRY_VOID(parse_json(text, name));

  ErrorSink sink;
  refuse_tabs(text, document->name, sink);
  if (!sink.ok()) return fail(sink.diagnostics());
  TreeBuilder builder(*document, sink);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder) || document->entries.empty()) {
      return fail_at({document->name, 1, 1}, kParse, "the file is empty");
    }
    ConfigDocument second;
    ErrorSink unread;
    TreeBuilder rest(second, unread);
    if (parser.HandleNextDocument(rest)) {
      sink.error(place(document->name, rest.start()), kParse,
                 "a second document starts here; one file, one document");
    }
  } catch (const YAML::Exception& error) {
    const auto open = builder.innermost_open();
    const bool truncated = error.msg == YAML::ErrorMsg::END_OF_SEQ_FLOW ||
                           error.msg == YAML::ErrorMsg::END_OF_MAP_FLOW;
    if (open && truncated) {  // yaml-cpp's own place for these is not useful
      sink.error(document->span(*open), kParse, "the {} that starts here is not closed",
                 document->entries[*open].kind == Kind::kList ? "list" : "object");
      return sink.result(Node());
    }
    sink.error(place(document->name, error.mark), kParse, "not valid YAML: {}", error.msg);
  }
  return sink.result(Node(std::move(document), 0));
}

}  // namespace orrery::base
