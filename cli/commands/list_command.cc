#include <fmt/format.h>

#include "base/json.h"
#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "costmodel/collectives/collective_tuning.h"
#include "costmodel/profiles/profiles.h"

namespace orrery::cli {

const base::CommandSpec& list_spec() {
  static const base::CommandSpec kSpec{
      .name = "list",
      .summary = "what the catalogs hold: models, clusters, profiles or tunings",
      .examples = {{"orrery list models", "names for --model"},
                   {"orrery list clusters --json", "for a script"}},
      .positionals = {{.name = "WHAT", .help = "models | clusters | profiles | tunings"}},
      .options = {json_option()}};
  return kSpec;
}

namespace {

struct Row {
  std::string name, description, source;
};

std::vector<Row> model_rows() {
  std::vector<Row> rows;
  for (const model::CatalogModel& m : model::list_catalog())
    rows.push_back({m.name, m.description, m.source});
  return rows;
}
std::vector<Row> cluster_rows() {
  std::vector<Row> rows;
  for (const topologies::CatalogEntry& c : topologies::list_catalog())
    rows.push_back({c.name, c.description, c.source});
  return rows;
}
std::vector<Row> profile_rows() {
  std::vector<Row> rows;
  for (const costmodel::CatalogProfile& p : costmodel::list_profiles())
    rows.push_back({p.name, p.device, p.source});
  return rows;
}

std::vector<Row> tuning_rows() {
  std::vector<Row> rows;
  for (const std::string& name : costmodel::list_tunings())
    if (const auto t = costmodel::find_tuning(name, ""))
      rows.push_back({t->name, t->description, t->source});
  return rows;
}

}  // namespace

base::Result<int> run_list(const base::Options& options, const Invocation&) {
  const std::string what = options.string("WHAT");
  std::vector<Row> rows;
  if (what == "models")
    rows = model_rows();
  else if (what == "clusters")
    rows = cluster_rows();
  else if (what == "profiles")
    rows = profile_rows();
  else if (what == "tunings")
    rows = tuning_rows();
  else {
    return base::fail(base::make_error(base::ErrorCode::kBadValue, "cannot list '{}'", what)
                          .with_hint("models, clusters, profiles or tunings"));
  }
  if (options.flag("json")) {
    base::Json j{{"schema", "orrery.list/1"}, {what, base::Json::array()}};
    for (const Row& r : rows)
      j[what].push_back({{"name", r.name}, {"description", r.description}, {"source", r.source}});
    print_json(j);
    return 0;
  }
  for (const Row& r : rows)
    fmt::print("{:<28} {}\n{:<28} source: {}\n", r.name, r.description, "", r.source);
  return 0;
}

}  // namespace orrery::cli
