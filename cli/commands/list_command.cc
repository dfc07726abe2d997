#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "costmodel/collectives/collective_tuning.h"
#include "costmodel/profiles/profiles.h"
#include "model/active_parameters.h"
#include "model/precisions.h"

namespace orrery::cli {

namespace {

struct Row {
  std::string name, description, source;
  std::int64_t parameters = 0, active = 0;  // of a model that can be read
};

Row model_row(const model::CatalogModel& entry) {
  Row row{entry.name, entry.description, entry.source};
  if (const auto spec = model::find_model(entry.name)) {
    row.parameters = spec->parameters();
    row.active = model::active_parameters(*spec);
  }
  return row;
}

template <class Entries, class MakeRow>
std::vector<Row> rows_of(const Entries& entries, const MakeRow& row) {
  std::vector<Row> rows;
  for (const auto& entry : entries) rows.push_back(row(entry));
  return rows;
}

std::vector<Row> tuning_rows() {
  std::vector<Row> rows;
  for (const std::string& name : costmodel::list_tunings())
    if (const auto t = costmodel::find_tuning(name, ""))
      rows.push_back({t->name, t->description, t->source});
  return rows;
}

Result<int> run(const Options& options, const Invocation&) {
  const std::string what = options.string("WHAT");
  const auto described = [](const auto& e) { return Row{e.name, e.description, e.source}; };
  std::vector<Row> rows;
  if (what == "models")
    rows = rows_of(model::list_catalog(), model_row);
  else if (what == "clusters")
    rows = rows_of(topologies::list_catalog(), described);
  else if (what == "profiles")
    rows = rows_of(costmodel::list_profiles(), [](const auto& p) {
      return Row{p.name, p.device, p.source};
    });
  else if (what == "software")
    rows = rows_of(costmodel::list_software(), [](const auto& p) {
      return Row{p.name, p.software, p.source};
    });
  else if (what == "precisions")
    rows = rows_of(model::list_precisions(), [](const auto& p) {
      return Row{std::string(p.name), std::string(p.description), std::string(p.source)};
    });
  else
    rows = tuning_rows();
  if (options.flag("json")) {
    print_json({{"schema", "orrery.list/1"},
                {what, json_list(rows, [](const Row& r) {
                   Json row{{"name", r.name}, {"description", r.description}, {"source", r.source}};
                   if (r.parameters > 0) {
                     row["parameters"] = r.parameters;
                     row["active_parameters"] = r.active;
                   }
                   return row;
                 })}});
    return 0;
  }
  for (const Row& r : rows) {
    fmt::print("{:<28} {}\n", r.name, r.description);
    if (r.parameters > 0) fmt::print("{:<28} {}\n", "", parameters_text(r.parameters, r.active));
    fmt::print("{:<28} source: {}\n", "", r.source);
  }
  return 0;
}

}  // namespace

Command list_command() {
  return {{.name = "list",
           .summary = "what there is: models, clusters, profiles, software, precisions, tunings",
           .examples = {{"orrery list models", "names for --model"},
                        {"orrery list clusters --json", "for a script"}},
           .positionals = {{.name = "WHAT",
                            .help = "what to list",
                            .choices = {"models", "clusters", "profiles", "software", "precisions",
                                        "tunings"}}},
           .options = {json_option()}},
          run};
}

}  // namespace orrery::cli
