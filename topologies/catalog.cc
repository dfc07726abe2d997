// Files to topologies: load, parse, and the catalog by name.
#include <algorithm>
#include <utility>

#include "base/config.h"
#include "base/data_dir.h"
#include "base/text.h"
#include "topologies/local.h"
#include "topologies/topology.h"
#include "topologies/topology_file.h"

namespace orrery::topologies {

using base::ErrorCode;
using base::Node;
using base::Result;

namespace {

constexpr std::string_view kCatalogFolder = "topologies/catalog";
constexpr std::string_view kExtension = ".yaml";
constexpr std::string_view kLocal = "local";

/// Catalog names of files: "dgx-a100" for dgx-a100.yaml, sorted.
std::vector<std::string> file_names() {
  std::vector<std::string> names;
  for (const std::string& file : base::list_data_files(kCatalogFolder, kExtension)) {
    names.push_back(file.substr(0, file.size() - kExtension.size()));
  }
  return names;
}

Result<std::filesystem::path> file_of(std::string_view name) {
  return base::data_file(fmt::format("{}/{}{}", kCatalogFolder, name, kExtension));
}

Result<CatalogEntry> read_entry(const std::string& name) {
  TRY(const auto path, file_of(name));
  TRY(const Node root, Node::parse_file(path));
  TRY(const TopologyFile file, read_topology_file(root));
  return CatalogEntry{name, file.description, file.source};
}

}  // namespace

Result<Topology> load_topology(const std::filesystem::path& path, uint32_t hosts) {
  TRY(const Node root, Node::parse_file(path));
  TRY(const TopologyFile file, read_topology_file(root));
  return build_topology(file, hosts);
}

Result<Topology> parse_topology(std::string_view text, std::string_view name, uint32_t hosts) {
  TRY(const Node root, Node::parse_text(text, name));
  TRY(const TopologyFile file, read_topology_file(root));
  return build_topology(file, hosts);
}

Result<Topology> catalog_topology(std::string_view name, uint32_t hosts) {
  if (name == kLocal) {
    TRY(const LocalMachine machine, probe_local_machine());
    return local_topology(machine, hosts);
  }
  std::vector<std::string> names = file_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    names.emplace_back(kLocal);
    base::Diagnostic fault = base::make_error(ErrorCode::kNotFound, "no topology '{}' in the catalog", name);
    fault.hint = base::did_you_mean(name, names, "topologies");
    return base::fail(std::move(fault));
  }
  TRY(const auto path, file_of(name));
  return load_topology(path, hosts);
}

std::vector<CatalogEntry> list_catalog() {
  std::vector<CatalogEntry> entries;
  for (const std::string& name : file_names()) {
    Result<CatalogEntry> entry = read_entry(name);
    // A user's own broken file must not hide the others.
    entries.push_back(entry ? *std::move(entry)
                            : CatalogEntry{name, "cannot be read: " + to_string(entry.error().front()), ""});
  }
  entries.push_back(
      {std::string(kLocal), "this machine's cores as devices, for execution on CPUs", std::string(kLocalSource)});
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

}  // namespace orrery::topologies
