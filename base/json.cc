#include "base/json.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/file.h"
#include "base/numbers.h"

namespace orrery::base {
namespace {

bool every_number_is_finite(const Json& node) {
  if (node.is_number_float()) return std::isfinite(node.get<double>());
  return std::ranges::all_of(node, [&](const Json& child) {
    return !node.is_structured() || every_number_is_finite(child);
  });
}

std::string dump(const Json& document, int indent) {
  ORRERY_CHECK(every_number_is_finite(document), "JSON has no infinite number");
  // Bytes that are not UTF-8 (a file name, say) become U+FFFD instead of an exception.
  return document.dump(indent, ' ', false, Json::error_handler_t::replace);
}

/// The library says "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error
/// while …".
std::string_view after(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  return at == std::string_view::npos ? text : text.substr(at + mark.size());
}

}  // namespace

std::string to_text(const Json& document) { return dump(document, 2) + "\n"; }

std::string to_line(const Json& document) { return dump(document, -1); }

Result<Json> parse_json(std::string_view text, std::string_view name) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    // `byte` counts the bytes read up to and including the offending one.
    const std::size_t at = error.byte > 0 ? std::min(error.byte - 1, text.size()) : 0;
    const std::string_view before = text.substr(0, at);
    const std::size_t newline = before.rfind('\n');
    const auto line = as_u32(std::ranges::count(before, '\n') + 1);
    const auto column = as_u32(newline == std::string_view::npos ? at + 1 : at - newline);
    return fail_at({std::string(name), line, column}, ErrorCode::kParse, "not valid JSON: {}",
                   after(after(error.what(), "] "), ": "));
  } catch (const Json::out_of_range& error) {
    return fail_at({std::string(name), 0, 0}, ErrorCode::kOutOfRange, "not valid JSON: {}",
                   after(error.what(), "] "));
  }
}

Result<void> write_json(const std::filesystem::path& path, const Json& document) {
  return write_file_atomic(path, to_text(document));
}

}  // namespace orrery::base
