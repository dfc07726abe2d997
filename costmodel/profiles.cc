#include "costmodel/profiles.h"

#include <filesystem>

#include "base/data_dir.h"
#include "base/text.h"
#include "costmodel/galvatron_import.h"

namespace orrery::costmodel {
namespace {

constexpr std::string_view kFolder = "costmodel/profiles";
constexpr std::string_view kExtension = ".json";

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& file : base::list_data_files(kFolder, kExtension)) all.push_back(file.substr(0, file.size() - kExtension.size()));
  return all;
}

base::Result<model::Profile> load_shipped(std::string_view name) {
  TRY(const auto path, base::data_file(fmt::format("{}/{}{}", kFolder, name, kExtension)));
  return model::load_profile(path.string());
}

}  // namespace

std::vector<CatalogProfile> list_profiles() {
  std::vector<CatalogProfile> all;
  for (const auto& name : names()) {
    const auto profile = load_shipped(name);
    if (profile) all.push_back({name, profile->device, profile->provenance.source});
  }
  return all;
}

base::Result<model::Profile> find_profile(std::string_view name, const model::ModelSpec& model) {
  const std::filesystem::path path(name);
  std::error_code ignored;  // an unreadable path is reported by the reader
  if (std::filesystem::is_directory(path, ignored)) return import_galvatron(path, model);
  if (name.find('/') != std::string_view::npos || name.ends_with(kExtension)) return model::load_profile(path.string());
  const auto known = names();
  for (const auto& candidate : known) {
    if (candidate == name) return load_shipped(name);
  }
  auto error = base::make_error(base::ErrorCode::kNotFound, "no profile '{}'", name);
  error.hint = base::did_you_mean(name, known, "profiles");
  return base::fail(std::move(error));
}

}  // namespace orrery::costmodel
