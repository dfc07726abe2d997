#include "costmodel/profiles/profiles.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/data_dir.h"
#include "base/numbers.h"
#include "base/text.h"
#include "costmodel/profiles/device_names.h"
#include "costmodel/profiles/galvatron_import.h"

namespace orrery::costmodel {
namespace {

constexpr base::Catalog kProfiles{"costmodel/profiles", ".json"},
    kDevices{"costmodel/profiles/devices", ".json"},
    kSoftware{"costmodel/profiles/software", ".json"};

base::Result<model::Profile> load(const base::Catalog& catalog, std::string_view name) {
  TRY(const auto path, catalog.file(name));
  return model::load_profile(path.string());
}

base::Result<model::Profile> shipped_software(std::string_view name);

/// Of a file, which may be like one that ships.
base::Result<model::Profile> read_software(const std::string& path) {
  TRY(const base::Node root, base::Node::parse_file(path));
  return model::read_profile(root, shipped_software);
}

base::Result<model::Profile> shipped_software(std::string_view name) {
  const auto known = kSoftware.names();
  if (std::ranges::find(known, name) == known.end())
    return base::fail(base::make_error(base::ErrorCode::kNotFound, "no software '{}'", name)
                          .with_hint(base::did_you_mean(name, known, "software")));
  TRY(const auto path, kSoftware.file(name));
  return read_software(path.string());
}

model::Profile in_training(model::Profile device, const model::Profile& software,
                           const model::ModelSpec& model) {
  device.framework = software.framework;
  device.provenance.software = software.name;
  if (device.framework && !model.dropout) {
    if (device.framework->attention == model::AttentionKernel::kExplicit)
      device.framework->attention = model::AttentionKernel::kFlash;
    device.framework->dropout = false;
  }
  device.composition_factor = software.composition_factor;
  device.device_deviation = software.device_deviation;
  device.overlap_slowdown = software.overlap_slowdown;
  device.spread = software.spread;
  if (device.spread && !device.surfaces.empty())
    device.spread->operators = device.surfaces.front().residual;
  device.step_communication = software.step_communication;
  return device;
}

/// How far a device is from the one that a profile was measured on, in logarithms.
double distance(const topologies::DeviceModel& device, const model::Profile& profile) {
  if (profile.surfaces.empty()) return base::kTooFar;
  const model::ComputeSurface& s = profile.surfaces.front();
  if (s.peak == 0 || s.memory_bandwidth == 0) return base::kTooFar;
  const double peak = std::abs(std::log(device.peak_bf16.raw() / s.peak)),
               memory = std::abs(std::log(device.memory_bandwidth.raw() / s.memory_bandwidth));
  return std::max(peak, memory) > std::log(kLikeness) ? base::kTooFar : peak + memory;
}

/// Power as a share of its own limit, as the device measured takes of that one's.
void like_at_its_limit(const topologies::DeviceModel& device, model::ComputeSurface& s) {
  const double dynamic = s.power.limit_watts - s.power.idle_watts;
  if (dynamic <= 0) {
    s.power = {};
    return;
  }
  s.power.joules_per_flop *= s.peak / device.peak_bf16.raw() * device.power.raw() / dynamic;
  s.power.idle_watts = 0;
}

struct Surface {
  model::Profile profile;
  bool measured = true;  // on this device
};

/// That of the device itself, else of the one most like it.
base::Result<std::optional<Surface>> surface_of(const topologies::DeviceModel& device) {
  std::vector<model::Profile> all;
  for (const auto& name : kDevices.names()) {
    TRY(model::Profile profile, load(kDevices, name));
    if (names_device(profile.device, device.name)) return Surface{std::move(profile)};
    all.push_back(std::move(profile));
  }
  const model::Profile* like =
      base::closest(all, [&](const model::Profile& p) { return distance(device, p); });
  if (like == nullptr) return std::nullopt;
  Surface stand_in{*like, false};
  stand_in.profile.held_ranks = 0;
  for (model::ComputeSurface& s : stand_in.profile.surfaces) like_at_its_limit(device, s);
  stand_in.profile.name = fmt::format("{}, the nearest to {}", like->name, device.name);
  return stand_in;
}

/// At least as wide as by datasheet.
model::Spread no_narrower(const std::optional<model::Spread>& stated) {
  model::Spread spread = stated.value_or(model::kDatasheetSpread);
  for (const auto& [name, field] : model::kSpreadFields)
    spread.*field = std::max(spread.*field, model::kDatasheetSpread.*field);
  return spread;
}

/// What a step takes on a device under some software.
model::Profile finished(Surface surface, const model::Profile& software,
                        const model::ModelSpec& model) {
  model::Profile profile = in_training(std::move(surface.profile), software, model);
  if (surface.measured) return profile;
  profile.device.clear();  // it suits others too
  profile.spread = no_narrower(profile.spread);
  return profile;
}

/// Of a user: only what a step adds, for the rest would be dropped.
base::Result<model::Profile> load_software(const std::string& path) {
  TRY(model::Profile software, read_software(path));
  const bool measures = !software.surfaces.empty() || !software.operators.empty() ||
                        !software.layers.empty() || !software.collectives.empty();
  if (software.framework && !measures) return software;
  return base::fail(base::make_error(base::ErrorCode::kInconsistent, "'{}' {}", path,
                                     measures ? "measures a device" : "has no framework")
                        .with_hint(measures
                                       ? "use it with --profile; software states what a step adds"
                                       : "software states a framework: docs/models/framework.md"));
}

base::Result<model::Profile> find_software(std::string_view name) {
  if (kSoftware.is_path(name)) return load_software(std::string(name));
  return shipped_software(name);
}

template <class Load>
std::vector<CatalogProfile> listed(const base::Catalog& catalog, Load load_one) {
  std::vector<CatalogProfile> all;
  for (const auto& name : catalog.names()) {
    const auto profile = load_one(name);
    if (profile)
      all.push_back(
          {name, profile->device, profile->provenance.software, profile->provenance.source});
  }
  return all;
}

}  // namespace

std::vector<CatalogProfile> list_profiles() {
  return listed(kProfiles, [](const auto& name) { return load(kProfiles, name); });
}
std::vector<CatalogProfile> list_software() { return listed(kSoftware, shipped_software); }

base::Result<model::Profile> find_profile(std::string_view name, const model::ModelSpec& model) {
  const std::filesystem::path path(name);
  std::error_code ignored;  // an unreadable path is reported by the reader
  if (std::filesystem::is_directory(path, ignored)) return import_galvatron(path, model);
  if (kProfiles.is_path(name)) return model::load_profile(path.string());
  const auto known = kProfiles.names();
  if (std::ranges::find(known, name) != known.end()) return load(kProfiles, name);
  return base::fail(base::make_error(base::ErrorCode::kNotFound, "no profile '{}'", name)
                        .with_hint(base::did_you_mean(name, known, "profiles")));
}

base::Result<std::optional<model::Profile>> device_profile(const topologies::Topology& topology,
                                                           const model::ModelSpec& model,
                                                           std::string_view software) {
  const auto devices = topology.device_models();
  const auto slowest = std::ranges::min_element(devices, {}, &topologies::DeviceModel::peak_bf16);
  if (slowest == devices.end()) return std::nullopt;
  TRY(std::optional<Surface> found, surface_of(*slowest));
  if (!found) return std::nullopt;
  if (software.empty())
    software = found->profile.framework || !found->measured ? "megatron-core" : "megatron-2021";
  TRY(const model::Profile stack, find_software(software));
  model::Profile profile = finished(*std::move(found), stack, model);
  if (devices.size() == 1) return profile;
  profile.device.clear();
  for (const topologies::DeviceModel& device : devices) {
    TRY(std::optional<Surface> own, surface_of(device));
    if (!own) own = Surface{{.name = fmt::format("datasheet of {}", device.name)}, false};
    profile.kinds.push_back(finished(*std::move(own), stack, model));
  }
  return profile;
}

}  // namespace orrery::costmodel
