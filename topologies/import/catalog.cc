// Files to topologies: load, parse, and the catalog by name.
#include <algorithm>
#include <utility>

#include "base/config.h"
#include "base/data_dir.h"
#include "base/text.h"
#include "topologies/import/import.h"
#include "topologies/import/local.h"
#include "topologies/import/settings.h"
#include "topologies/import/topology_file.h"
#include "topologies/topology.h"

namespace orrery::topologies {

using enum base::ErrorCode;
using base::Node;
using base::Result;

namespace {

constexpr base::Catalog kCatalog{"topologies/catalog", ".yaml"};
constexpr std::string_view kLocal = "local";

base::Diagnostic no_topology(std::string_view name, std::span<const std::string> names) {
  return base::make_error(kNotFound, "no topology '{}' in the catalog", name)
      .with_hint(base::did_you_mean(name, names, "topologies"));
}

/// The file of one host that a reference names: a catalog name, or a path from the folder of the
/// file that refers.
Result<TopologyFile> read_host(const HostReference& reference,
                               const std::filesystem::path& folder) {
  std::filesystem::path path = folder / reference.type;
  if (!kCatalog.is_path(reference.type)) {
    const std::vector<std::string> names = kCatalog.names();
    if (std::ranges::find(names, reference.type) == names.end()) {
      return base::fail(no_topology(reference.type, names).at(reference.place));
    }
    TRY(path, kCatalog.file(reference.type));
  }
  TRY(const Node root, Node::parse_file(path));
  TRY(TopologyFile file, read_topology_file(root));
  if (!file.references.empty()) {
    return base::fail(
        base::make_error(kUnsupported, "'{}' does not describe a host itself", reference.type)
            .at(reference.place)
            .with_hint("name the file that has the host's parts"));
  }
  return file;
}

/// The file with every host it refers to; all faults of its references at once.
Result<TopologyFile> complete(const Node& root, const std::filesystem::path& folder) {
  TRY(TopologyFile file, read_topology_file(root));
  base::ErrorSink sink;
  for (const HostReference& reference : file.references) {
    Result<TopologyFile> described = read_host(reference, folder);
    if (!described) {
      sink.add(std::move(described).error());
      continue;
    }
    HostKind& host = described->kinds.front();
    if (const uint32_t has = device_count(host); reference.devices.value_or(has) > has) {
      sink.error(reference.place, kOutOfRange, "'{}' has {} devices, not {}", reference.type, has,
                 *reference.devices);
      continue;
    }
    if (reference.devices) keep_devices(host, *reference.devices);
    add_host_kind(file, *described, reference.count);
  }
  return sink.result(std::move(file));
}

Result<CatalogEntry> read_entry(const std::string& name) {
  TRY(const auto path, kCatalog.file(name));
  TRY(const Node root, Node::parse_file(path));
  TRY(const TopologyFile file, read_topology_file(root));
  std::string source = file.source;
  for (const HostReference& reference : file.references)
    source += (source.empty() ? "hosts of the catalog: " : ", ") + reference.type;
  return CatalogEntry{name, file.description, std::move(source)};
}

/// Devices of all readable files; a user's own broken file must not hide the others.
std::vector<DeviceModel> catalog_devices() {
  std::vector<DeviceModel> models;
  for (const std::string& file : kCatalog.names()) {
    const auto path = kCatalog.file(file);
    if (!path) continue;
    const auto root = Node::parse_file(*path);
    if (!root) continue;
    const auto described = read_topology_file(*root);
    if (described) models.insert(models.end(), described->models.begin(), described->models.end());
  }
  return models;
}

}  // namespace

Result<DeviceModel> catalog_device_model(std::string_view name) {
  std::vector<std::string> names;
  for (DeviceModel& model : catalog_devices()) {
    if (model.name == name) return std::move(model);
    names.push_back(model.name);
  }
  base::Diagnostic fault =
      base::make_error(kNotFound, "no device '{}' in the catalog's hosts", name);
  fault.hint = base::did_you_mean(name, names, "devices");
  if (fault.hint.empty()) fault.hint = "known devices: " + base::join(names, ", ");
  return base::fail(std::move(fault));
}

std::vector<std::string> catalog_device_names() {
  std::vector<std::string> names;
  for (const DeviceModel& model : catalog_devices()) names.push_back(model.name);
  return names;
}

Result<SlurmImport> slurm_hosts(const std::string& host) {
  TRY(const TopologyFile file,
      read_host({.type = host, .count = 1, .place = {}}, std::filesystem::path()));
  if (!file.fabric)
    return base::fail(kInconsistent,
                      "host '{}' has no fabric section, which says how fast its cards' cables are",
                      host);
  SlurmImport known;
  known.host = host;
  known.nics_per_host = 0;
  for (const PartGroup& part : file.kinds.front().parts)
    known.nics_per_host += part.kind == VertexKind::kNic ? part.count : 0;
  known.cable = *file.fabric;
  return known;
}

Result<Topology> load_topology(const std::filesystem::path& path, uint32_t hosts,
                               std::span<const base::Setting> settings) {
  TRY(const Node root, Node::parse_file(path));
  TRY(TopologyFile file, complete(root, path.parent_path()));
  TRY_VOID(apply_settings(file, settings));
  return build_topology(file, hosts);
}

Result<Topology> parse_topology(std::string_view text, std::string_view name, uint32_t hosts) {
  TRY(const Node root, Node::parse_text(text, name));
  TRY(const TopologyFile file, complete(root, std::filesystem::path(name).parent_path()));
  return build_topology(file, hosts);
}

Result<Topology> catalog_topology(std::string_view name, uint32_t hosts,
                                  std::span<const base::Setting> settings) {
  if (name == kLocal) {
    if (!settings.empty())
      return base::fail(base::make_error(kUnsupported, "'{}' on this machine, which was measured",
                                         settings.front().text())
                            .with_hint("write it with 'orrery topology detect', and change that"));
    TRY(const LocalMachine machine, probe_local_machine());
    return local_topology(machine, hosts);
  }
  std::vector<std::string> names = kCatalog.names();
  if (std::ranges::find(names, name) == names.end()) {
    names.emplace_back(kLocal);
    return base::fail(no_topology(name, names));
  }
  TRY(const auto path, kCatalog.file(name));
  return load_topology(path, hosts, settings);
}

std::vector<CatalogEntry> list_catalog() {
  std::vector<CatalogEntry> entries;
  for (const std::string& name : kCatalog.names()) {
    Result<CatalogEntry> entry = read_entry(name);
    // A user's own broken file must not hide the others.
    entries.push_back(
        entry ? *std::move(entry)
              : CatalogEntry{name, "cannot be read: " + to_string(entry.error().front()), ""});
  }
  entries.push_back({std::string(kLocal), "this machine's cores as devices, for execution on CPUs",
                     std::string(kLocalSource)});
  std::ranges::sort(entries, [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

}  // namespace orrery::topologies
