#include <algorithm>
#include <string>
#include <vector>

#include "base/data_dir.h"
#include "base/text.h"
#include "model/spec.h"

namespace orrery::model {
namespace {

constexpr base::Catalog kCatalog{"model/catalog", ".json"};

std::vector<std::string> catalog_names() {
  std::vector<std::string> names = kCatalog.names();
  // "gpt2" before "gpt2-tiny", but "gpt2-tiny.json" before "gpt2.json"
  std::ranges::sort(names);
  return names;
}

base::Result<base::Node> parse_entry(const std::string& name) {
  TRY(const auto path, kCatalog.file(name));
  return base::Node::parse_file(path);
}

CatalogModel describe(const std::string& name) {
  const base::Result<base::Node> root = parse_entry(name);
  if (!root)
    return {.name = name, .description = base::to_string(root.error().front()), .source = ""};
  base::ErrorSink sink;
  base::Reader reader(*root, fmt::format("model '{}'", name), sink);
  CatalogModel entry{.name = name,
                     .description = reader.required_string("description"),
                     .source = reader.required_string("source")};
  if (!sink.ok()) entry.description = base::to_string(sink.diagnostics().front());
  return entry;
}

}  // namespace

// An entry that cannot be read stays in the list, with its fault in place of the description: a
// listing shows what is there.
std::vector<CatalogModel> list_catalog() {
  std::vector<CatalogModel> models;
  for (const std::string& name : catalog_names()) models.push_back(describe(name));
  return models;
}

base::Result<ModelSpec> find_model(std::string_view name) {
  if (kCatalog.is_path(name)) return load_hf_config(std::string(name));
  const std::vector<std::string> names = catalog_names();
  const std::string wanted(name);
  if (std::ranges::find(names, wanted) == names.end()) {
    base::Diagnostic fault =
        base::make_error(base::ErrorCode::kNotFound, "no model '{}' in the catalog", name);
    fault.hint = base::did_you_mean(name, names, "models");
    if (fault.hint.empty())
      fault.hint = "'orrery list models' names them; a path to a config.json works too";
    return base::fail(std::move(fault));
  }
  TRY(const base::Node root, parse_entry(wanted));
  return read_hf_config(root, name);
}

}  // namespace orrery::model
