#include "costmodel/profiles/profiles.h"

#include <algorithm>
#include <filesystem>

#include "base/data_dir.h"
#include "base/text.h"
#include "costmodel/profiles/device_names.h"
#include "costmodel/profiles/galvatron_import.h"

namespace orrery::costmodel {
namespace {

constexpr std::string_view kFolder = "costmodel/profiles";
constexpr std::string_view kDevices = "costmodel/profiles/devices";
constexpr std::string_view kSoftware = "costmodel/profiles/software";
constexpr std::string_view kTrainingStep = "training-step";
constexpr std::string_view kExtension = ".json";

std::vector<std::string> names(std::string_view folder = kFolder) {
  std::vector<std::string> all;
  for (const auto& file : base::list_data_files(folder, kExtension))
    all.push_back(file.substr(0, file.size() - kExtension.size()));
  return all;
}

base::Result<model::Profile> load_shipped(std::string_view name,
                                          std::string_view folder = kFolder) {
  TRY(const auto path, base::data_file(fmt::format("{}/{}{}", folder, name, kExtension)));
  return model::load_profile(path.string());
}

/// Rate of the first device's link to the second; 0: there is none, or they do not share a host.
double device_link_rate(const topologies::Topology& topology) {
  if (topology.device_count() < 2 || !topology.same_host(0, 1)) return 0;
  return static_cast<double>(topology.link(topology.route(0, 1).front()).bytes_per_second);
}

model::Profile in_training(model::Profile device, const model::Profile& software,
                           const topologies::Topology& topology, const model::ModelSpec& model) {
  const double rate = device_link_rate(topology);
  std::erase_if(device.collectives, [&](const model::CollectiveTimes& c) {
    return c.link_rate > 0 && c.link_rate != rate;
  });
  const bool flash = device.framework || !model.dropout;
  device.framework = software.framework;
  if (device.framework && flash) {
    device.framework->attention = model::AttentionKernel::kFlash;
    device.framework->dropout = false;
  }
  device.composition_factor = software.composition_factor;
  device.spread = software.spread;
  if (device.spread && !device.surfaces.empty())
    device.spread->operators = device.surfaces.front().residual;
  device.step_communication = software.step_communication;
  return device;
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
  if (name.find('/') != std::string_view::npos || name.ends_with(kExtension))
    return model::load_profile(path.string());
  const auto known = names();
  for (const auto& candidate : known) {
    if (candidate == name) return load_shipped(name);
  }
  auto error = base::make_error(base::ErrorCode::kNotFound, "no profile '{}'", name);
  error.hint = base::did_you_mean(name, known, "profiles");
  return base::fail(std::move(error));
}

base::Result<std::optional<model::Profile>> device_profile(const topologies::Topology& topology,
                                                           const model::ModelSpec& model) {
  const auto models = topology.device_models();
  for (const auto& name : names(kDevices)) {
    TRY(model::Profile profile, load_shipped(name, kDevices));
    const auto named = [&](const topologies::DeviceModel& d) {
      return names_device(profile.device, d.name);
    };
    if (models.empty() || !std::ranges::all_of(models, named)) continue;
    TRY(const model::Profile software, load_shipped(kTrainingStep, kSoftware));
    return std::optional<model::Profile>(
        in_training(std::move(profile), software, topology, model));
  }
  return std::nullopt;
}

}  // namespace orrery::costmodel
