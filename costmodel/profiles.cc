#include "costmodel/profiles.h"

#include <algorithm>
#include <filesystem>

#include "base/data_dir.h"
#include "base/text.h"
#include "costmodel/device_names.h"
#include "costmodel/galvatron_import.h"

namespace orrery::costmodel {
namespace {

constexpr std::string_view kFolder = "costmodel/profiles";
constexpr std::string_view kDevices = "costmodel/profiles/devices";
constexpr std::string_view kExtension = ".json";

std::vector<std::string> names(std::string_view folder = kFolder) {
  std::vector<std::string> all;
  for (const auto& file : base::list_data_files(folder, kExtension)) all.push_back(file.substr(0, file.size() - kExtension.size()));
  return all;
}

base::Result<model::Profile> load_shipped(std::string_view name, std::string_view folder = kFolder) {
  TRY(const auto path, base::data_file(fmt::format("{}/{}{}", folder, name, kExtension)));
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

base::Result<std::optional<model::Profile>> device_profile(const topologies::Topology& topology) {
  const auto models = topology.device_models();
  for (const auto& name : names(kDevices)) {
    TRY(model::Profile profile, load_shipped(name, kDevices));
    const auto named = [&](const topologies::DeviceModel& d) { return names_device(profile.device, d.name); };
    if (!models.empty() && std::all_of(models.begin(), models.end(), named)) return std::optional<model::Profile>(std::move(profile));
  }
  return std::nullopt;
}

}  // namespace orrery::costmodel
