#include "base/data_dir.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/text.h"

#ifndef ORRERY_SOURCE_DIR
#define ORRERY_SOURCE_DIR ""
#endif

namespace orrery::base {
namespace {

namespace fs = std::filesystem;

/// Read where it lies, so that the program holds the path as one text: tests write another over it.
const char* volatile source_folder = ORRERY_SOURCE_DIR;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_regular_file(error)) names.insert(it->path().filename().string());
  }
  return names;
}

}  // namespace

std::vector<fs::path> data_roots() {
  std::vector<fs::path> roots;
  if (const char* from_environment = std::getenv("ORRERY_DATA");
      from_environment != nullptr && *from_environment) {
    roots.emplace_back(from_environment);
  }
  std::error_code error;
  if (const fs::path self = fs::read_symlink("/proc/self/exe", error); !error) {
    roots.push_back(self.parent_path().parent_path() / "share" / "orrery");
  }
  if (const std::string_view source = source_folder; !source.empty()) roots.emplace_back(source);
  return roots;
}

Result<fs::path> data_file(std::string_view relative) {
  std::set<std::string> siblings;
  for (const fs::path& root : data_roots()) {
    const fs::path candidate = root / relative;
    std::error_code error;
    if (fs::is_regular_file(candidate, error)) return candidate;
    siblings.merge(names_in(candidate.parent_path()));
  }
  Diagnostic missing = make_error(ErrorCode::kNotFound, "no data file '{}'", relative);
  const std::vector<std::string> names(siblings.begin(), siblings.end());
  missing.hint = did_you_mean(fs::path(relative).filename().string(), names, "files there");
  for (const fs::path& root : data_roots()) missing.notes.push_back("looked in " + root.string());
  return fail(std::move(missing));
}

std::vector<std::string> list_data_files(std::string_view folder, std::string_view extension) {
  std::set<std::string> names;
  for (const fs::path& root : data_roots()) {
    for (const std::string& name : names_in(root / folder)) {
      if (fs::path(name).extension() == extension) names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> Catalog::names() const {
  std::vector<std::string> names = list_data_files(folder, extension);
  for (std::string& name : names) name.resize(name.size() - extension.size());
  return names;
}

Result<fs::path> Catalog::file(std::string_view name) const {
  return data_file(fmt::format("{}/{}{}", folder, name, extension));
}

}  // namespace orrery::base
