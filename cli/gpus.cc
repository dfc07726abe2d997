#include "cli/gpus.h"

#include <algorithm>
#include <vector>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/refuse.h"
#include "topologies/import/import.h"
#include "topologies/topology.h"

namespace orrery::cli {
namespace {

std::string first_word(const std::string& device) { return device.substr(0, device.find('-')); }

struct Host {
  std::string cluster;
  std::int64_t devices = 0;
};

/// Those of the catalog whose only device is it and whose number may be chosen.
std::vector<Host> hosts_with(const std::string& device) {
  std::vector<Host> hosts;
  for (const topologies::CatalogEntry& entry : topologies::list_catalog()) {
    if (entry.name == "local") continue;
    const auto one = topologies::catalog_topology(entry.name);
    if (!one || one->hosts() != 1 || one->device_models().size() != 1) continue;
    const std::string name = base::to_lower(one->device_models().front().name);
    if (name == device || first_word(name) == device)
      hosts.push_back({entry.name, one->device_count()});
  }
  const auto usual = std::ranges::find(hosts, "dgx-" + first_word(device), &Host::cluster);
  if (usual != hosts.end()) return {*usual};
  return hosts;
}

std::string known_devices() {
  std::vector<std::string> words;
  for (const std::string& name : topologies::catalog_device_names())
    words.push_back(first_word(name));
  std::ranges::sort(words);
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return "known devices: " + base::join(words, ", ");
}

}  // namespace

Result<GpuCluster> cluster_of_gpus(std::string_view text) {
  const std::size_t cross = text.find('x');
  const auto count = base::parse_integer(text.substr(0, cross));
  if (cross == std::string_view::npos || cross + 1 == text.size() || !count || *count < 1 ||
      *count > topologies::kMaxHosts)
    return refuse(kBadValue, "a number, x and a device, as 64xH100", "'{}' is no number of devices",
                  text);
  const std::string device(text.substr(cross + 1));
  const std::vector<Host> hosts = hosts_with(base::to_lower(device));
  if (hosts.empty())
    return refuse(kNotFound, known_devices(), "no host of the catalog has a device '{}'", device);
  if (hosts.size() > 1) {
    std::vector<std::string> names;
    for (const Host& host : hosts) names.push_back(host.cluster);
    return refuse(kInconsistent, "name one with --cluster, and --hosts: " + base::join(names, ", "),
                  "several hosts of the catalog have a device '{}'", device);
  }
  const auto& [cluster, devices] = hosts.front();
  const std::int64_t whole = *count / devices;
  if (*count % devices != 0) {
    const std::string more = fmt::format("{}x{}", (whole + 1) * devices, device);
    return refuse(kInconsistent,
                  whole == 0 ? more : fmt::format("{}x{} or {}", whole * devices, device, more),
                  "{} devices are not whole hosts: '{}' has {}", *count, cluster, devices);
  }
  return GpuCluster{cluster, as_int(whole)};
}

}  // namespace orrery::cli
