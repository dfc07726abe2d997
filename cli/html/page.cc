#include "cli/html/page.h"

#include <fmt/format.h>

#include "base/data_dir.h"
#include "base/file.h"
#include "base/json.h"

namespace orrery::cli {
namespace {

base::Result<std::string> asset(const std::string& name) {
  TRY(const std::filesystem::path path, base::data_file("cli/html/assets/" + name));
  return base::read_file(path);
}

/// The first `mark` gives way to `text`.
void fill(std::string& page, std::string_view mark, const std::string& text) {
  page.replace(page.find(mark), mark.size(), text);
}

}  // namespace

base::Result<std::string> page_of(std::string_view name, const base::Json& data) {
  TRY(std::string page, asset("page.html"));
  TRY(const std::string body, asset(fmt::format("{}.html", name)));
  TRY(const std::string style, asset("page.css"));
  TRY(const std::string shared, asset("page.js"));
  TRY(const std::string own, asset(fmt::format("{}.js", name)));
  std::string text = base::to_line(data);
  // so that no text ends the element
  for (std::size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at))
    text.replace(at, 1, "\\u003c");
  fill(page, "@STYLE@", style);
  fill(page, "@BODY@", body);
  fill(page, "@DATA@", text);
  fill(page, "@SCRIPT@", shared + own);
  return page;
}

}  // namespace orrery::cli
