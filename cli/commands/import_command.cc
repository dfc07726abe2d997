#include <array>

#include "base/file.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/text/show.h"
#include "costmodel/closed_form/closed_form.h"
#include "plan/import/import.h"

namespace orrery::cli {

namespace {

/// The text of a file by one of the readers.
using TextReader = Result<plan::ImportedPlan> (*)(std::string_view, const std::string&,
                                                  const plan::ImportTarget&);

struct Kind {
  std::string_view name;
  TextReader read;
};

Result<plan::ImportedPlan> read_galvatron(std::string_view text, const std::string& name,
                                          const plan::ImportTarget& target) {
  TRY(const base::Node root, base::Node::parse_text(text, name));
  return plan::import_galvatron(root, target);
}

constexpr std::array kKinds{Kind{"galvatron", read_galvatron},
                            Kind{"megatron", plan::import_megatron},
                            Kind{"torchtitan", plan::import_torchtitan}};

Result<TextReader> reader_of(const std::string& kind) {
  std::vector<std::string> names;
  for (const Kind& k : kKinds) {
    if (k.name == kind) return k.read;
    names.emplace_back(k.name);
  }
  return refuse(kBadValue, base::did_you_mean(kind, names, "frameworks"), "cannot import '{}'",
                kind);
}

Result<int> run(const Options& options, const Invocation&) {
  TRY(const TextReader read, reader_of(options.string("KIND")));
  const int hosts = options.count("hosts");
  TRY(const ModelSpec model, model::find_model(options.string("model")));
  TRY(const Topology cluster, find_cluster(options.string("cluster"), hosts));
  plan::ImportTarget target{
      .model = model, .cluster = options.string("cluster"), .hosts = hosts, .precision = {}};
  const auto devices = static_cast<std::int64_t>(cluster.device_count());
  target.devices = options.has("devices") ? options.integer("devices") : devices;
  if (target.devices > devices)
    return base::fail(kInconsistent, "--devices {}, cluster '{}' has {}", target.devices,
                      cluster.name(), devices);
  target.sequence = sequence_of(options);
  if (options.has("precision")) target.precision = precision_of(options);
  const std::string file = options.string("FILE");
  TRY(const std::string text, base::read_file(file));
  TRY(const plan::ImportedPlan imported, read(text, file, target));
  TRY_VOID(base::write_json(options.string("out"), plan::to_json(imported.plan)));
  for (const std::string& note : imported.notes) say("note: {}\n", note);

  // What it costs here, where the plan can be lowered.
  TRY(const PriceNames prices, price_names(options));
  TRY(const Scene scene, make_scene(options.string("model"), options.string("cluster"), hosts,
                                    prices, imported.plan.precision, imported.plan.sequence));
  const auto priced = costmodel::plan_cost(scene.cost, imported.plan);
  Json json{{"schema", "orrery.import/1"},
            {"plan", plan::to_json(imported.plan)},
            {"notes", imported.notes}};
  if (priced) {
    json["closed_form_ps"] = priced->step_ps;
    json["origin"] = origin_json(scene.cost);
  } else {
    say("note: the plan cannot be simulated here\n{}\n", base::to_string(priced.error()));
  }
  if (options.flag("json")) {
    print_json(json);
  } else {
    fmt::print("{}", describe(imported.plan));
    if (priced)
      fmt::print("closed form: {} a step; prices: {}\n", show_time(priced->step_ps),
                 describe_origin(scene.cost));
  }
  say("plan written to {}\n", options.string("out"));
  return 0;
}

base::OptionSpec precision_of_file() {
  base::OptionSpec o = precision_option();
  o.default_value.clear();
  o.help = "training precision (default: the file's)";
  return o;
}

}  // namespace

Command import_command() {
  return {
      {.name = "import",
       .summary = "turn a plan of Galvatron, Megatron-LM or TorchTitan into a plan file",
       .examples = {{"orrery import galvatron galvatron_config.json --model llama-2-7b --cluster "
                     "dgx-a100 --out plan.json",
                     "then 'orrery simulate --plan plan.json'"},
                    {"orrery import megatron pretrain.sh --model llama-3-70b --cluster dgx-h100 "
                     "--hosts 8 --out plan.json",
                     "arguments in a script or one per line"}},
       .positionals = {{.name = "KIND", .help = "galvatron | megatron | torchtitan"},
                       {.name = "FILE",
                        .help = "galvatron_config_*.json, Megatron-LM arguments, or TorchTitan's "
                                "TOML"}},
       .options =
           joined({{model_option(true), cluster_option(true), hosts_option(),
                    integer_option("devices", "N", {1, 1 << 20},
                                   "ranks when the file does not say (default: all devices)"),
                    sequence_option(), precision_of_file()},
                   price_options(),
                   {required(text_option("out", "FILE", "write the plan (orrery.plan/1)")),
                    json_option()}})},
      run};
}

}  // namespace orrery::cli
