#include "costmodel/profiles/profiles.h"

#include <algorithm>
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

/// Rate of the first device's link to the second; 0: there is none, or they do not share a host.
double device_link_rate(const topologies::Topology& topology) {
  if (topology.device_count() < 2 || !topology.same_host(0, 1)) return 0;
  return real(topology.link(topology.route(0, 1).front()).bytes_per_second);
}

/// Over links of another rate the same messages take so much less time beyond their latency, which
/// is the time of the smallest one measured.
void on_links_of(double rate, model::CollectiveTimes& c) {
  if (c.link_rate <= 0) return;
  const double faster = rate / std::exchange(c.link_rate, rate);
  c.bus_bandwidth *= faster;
  const double least = c.points.empty() ? 0 : c.points.front().seconds;
  for (model::CollectivePoint& p : c.points) p.seconds = least + (p.seconds - least) / faster;
}

model::Profile in_training(model::Profile device, const model::Profile& software,
                           const topologies::Topology& topology, const model::ModelSpec& model) {
  const double rate = device_link_rate(topology);
  std::erase_if(device.collectives, [&](const model::CollectiveTimes& c) {  // links of another kind
    return c.link_rate > 0 && (rate < c.link_rate / 2 || rate > 2 * c.link_rate);
  });
  for (model::CollectiveTimes& c : device.collectives) on_links_of(rate, c);
  const bool flash = device.framework || !model.dropout;
  device.framework = software.framework;
  if (device.framework && flash) {
    device.framework->attention = model::AttentionKernel::kFlash;
    device.framework->dropout = false;
  }
  device.composition_factor = software.composition_factor;
  device.device_deviation = software.device_deviation;
  device.spread = software.spread;
  if (device.spread && !device.surfaces.empty())
    device.spread->operators = device.surfaces.front().residual;
  device.step_communication = software.step_communication;
  return device;
}

}  // namespace

std::vector<CatalogProfile> list_profiles() {
  std::vector<CatalogProfile> all;
  for (const auto& name : kProfiles.names()) {
    const auto profile = load(kProfiles, name);
    if (profile) all.push_back({name, profile->device, profile->provenance.source});
  }
  return all;
}

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
                                                           const model::ModelSpec& model) {
  const auto models = topology.device_models();
  for (const auto& name : kDevices.names()) {
    TRY(model::Profile profile, load(kDevices, name));
    const auto named = [&](const topologies::DeviceModel& d) {
      return names_device(profile.device, d.name);
    };
    if (models.empty() || !std::ranges::all_of(models, named)) continue;
    TRY(const model::Profile software, load(kSoftware, "training-step"));
    return std::optional<model::Profile>(
        in_training(std::move(profile), software, topology, model));
  }
  return std::nullopt;
}

}  // namespace orrery::costmodel
